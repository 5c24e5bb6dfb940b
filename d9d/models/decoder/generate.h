// Generates text with a trained decoder, token by token. For inspecting a model, not for serving: every token reruns
// the whole sequence.
//
// Example
//   std::string text = generate_bytes(model, "#include <", {.num_tokens = 200, .temperature = 0.7});
// Text of a tokenizer.json: generate_text.h.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "d9d/models/decoder/token_model.h"

namespace d9d {

struct GenerateOptions {
  std::int64_t num_tokens = 100;
  double temperature = 0.0;                            // 0: always the likeliest token
  std::int64_t max_sequence = 512;                     // the model sees at most this number of latest tokens
  std::uint64_t seed = 0;                              // of the sampling
  std::vector<std::int64_t> stop_ids = {};             // generation ends after any of these
  std::function<void(std::int64_t id)> on_token = {};  // called on each rank with each token once it is generated
  // The axes cp and tp over which the model divides positions: context.mesh(MeshDomain::kBatch).slice({"cp", "tp"}).
  DeviceMesh sequence_ranks = {};
  // All ranks of the model, if there are several: every rank takes the token of the first, so that all stop together
  // even if their logits differ in the last bits. If it is empty, all ranks must compute equal logits.
  DeviceMesh ranks = {};
};

// Collective over all ranks of the model, with the same arguments. Returns the ids that follow `prompt`, which must not
// be empty: num_tokens, or fewer that end with one of stop_ids. Runs in eval mode without gradients and restores the
// mode of each module.
[[nodiscard]] std::vector<std::int64_t> generate(TokenModel& model, std::vector<std::int64_t> prompt,
                                                 const GenerateOptions& options);
// The same for a model that is not split into stages.
[[nodiscard]] std::vector<std::int64_t> generate(const ModulePtr<DecoderForCausalLM>& model,
                                                 std::vector<std::int64_t> prompt, const GenerateOptions& options);

// The same for models of bytes, whose token ids are bytes. Ids above 255 become '?'.
[[nodiscard]] std::string generate_bytes(TokenModel& model, std::string_view prompt, const GenerateOptions& options);
[[nodiscard]] std::string generate_bytes(const ModulePtr<DecoderForCausalLM>& model, std::string_view prompt,
                                         const GenerateOptions& options);

}  // namespace d9d
