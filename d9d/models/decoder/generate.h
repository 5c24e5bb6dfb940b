// Text from a trained decoder, one token after the other. For looking at a model, not for serving: every token runs the
// whole sequence again.
//
// Example
//   std::string text = generate_bytes(model, "#include <", {.num_tokens = 200, .temperature = 0.7});
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "d9d/models/decoder/decoder_with_head.h"

namespace d9d {

struct GenerateOptions {
  std::int64_t num_tokens = 100;
  double temperature = 0.0;         // 0: always the likeliest token
  std::int64_t max_sequence = 512;  // the model sees the last so many tokens
  std::uint64_t seed = 0;           // of the sampling
  // Axes cp and tp over which the model divides positions: context.mesh(MeshDomain::kBatch).slice({"cp", "tp"}).
  DeviceMesh sequence_ranks = {};
};

// Collective over all ranks of the model, with the same arguments. Continues `prompt` (not empty) by num_tokens ids.
// Runs in eval mode without gradients and restores the mode. One stage.
[[nodiscard]] std::vector<std::int64_t> generate(const ModulePtr<DecoderForCausalLM>& model,
                                                 std::vector<std::int64_t> prompt, const GenerateOptions& options);

// The same for models of bytes: token id = byte. Ids beyond 255 come out as '?'.
[[nodiscard]] std::string generate_bytes(const ModulePtr<DecoderForCausalLM>& model, std::string_view prompt,
                                         const GenerateOptions& options);

}  // namespace d9d
