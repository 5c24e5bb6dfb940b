// Generates tokens with a trained decoder. A cache keeps the keys and values of earlier positions. Models in several
// stages, under context parallelism, with layers that no cache serves (UncachedAttentionError,
// DecoderLayer::is_cacheable), and sequences beyond max_sequence run without one: generate() then computes the whole
// sequence for every token, and generate_batch() refuses them.
//
// Example
//   std::string text = generate_bytes(model, "#include <", {.num_tokens = 200, .temperature = 0.7});
//
//   const std::vector<GeneratedSequence> answers =                      // of prompts of different lengths
//       generate_batch(model, {{1, 2, 3}, {4}}, {.num_tokens = 64, .temperature = 1.0, .top_p = 0.95});
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
  double temperature = 0.0;  // 0: always the likeliest token; see TokenChoice for this and the next two
  std::int64_t top_k = 0;    // draw from the k likeliest tokens; 0: from all
  double top_p = 1.0;        // draw from the likeliest tokens of together this probability
  // The model sees at most this number of latest tokens, and at most as many as it has positions; 0: as many as that.
  std::int64_t max_sequence = 0;
  std::uint64_t seed = 0;  // of the sampling
  // The number of the first prompt, of those on all ranks. A sequence draws by its number, its length and the seed, so
  // that it is the same whatever ranks and batches the sequences are divided into.
  std::int64_t first_sequence = 0;
  std::vector<std::int64_t> stop_ids = {};  // a sequence ends after any of these
  // Called on each rank with each token of its sequences once it is generated, and with the sequence's place here. If
  // it throws on one of `ranks`, generation ends on all: that rank rethrows it, and the others throw IoError.
  std::function<void(std::int64_t id, std::int64_t sequence)> on_token = {};
  // The axes cp and tp over which the model divides positions: context.mesh(MeshDomain::kBatch).slice({"cp", "tp"}).
  DeviceMesh sequence_ranks = {};
  // All ranks of the model, if there are several. They stop together: with generate() every rank takes the token of the
  // first, even if their logits differ in the last bits; with generate_batch() they run until the last sequence ends.
  // If it is empty, all ranks must compute equal logits.
  DeviceMesh ranks = {};
};

// Collective over all ranks of the model, with the same arguments. Returns the ids that follow `prompt`, which must not
// be empty: num_tokens, or fewer that end with one of stop_ids. Runs in eval mode without gradients and restores the
// mode of each module. Throws StateError for logits that are no numbers.
[[nodiscard]] std::vector<std::int64_t> generate(TokenModel& model, std::vector<std::int64_t> prompt,
                                                 const GenerateOptions& options);
// The same for a model that is not split into stages.
[[nodiscard]] std::vector<std::int64_t> generate(const ModulePtr<DecoderForCausalLM>& model,
                                                 std::vector<std::int64_t> prompt, const GenerateOptions& options);

struct GeneratedSequence {
  std::vector<std::int64_t> ids;  // num_tokens, or fewer that end with one of stop_ids
  // The log-probability of each id, given the prompt and the ids before it: log of the softmax of the model's logits,
  // as its training computes it. Temperature, top_k and top_p do not change it.
  std::vector<double> log_probs;
};

// Continues all prompts together, with a cache. Collective over all ranks of the model, with the same options but for
// first_sequence. Ranks that differ only in tp (sequence_ranks) get the same prompts, and each takes the tokens of the
// first of them; other ranks get prompts of their own, any number of them. Mode, gradients and logits as generate().
// Throws ConfigError, on all ranks, for a prompt that is empty or has with num_tokens more positions than max_sequence,
// and for a model that no cache serves.
[[nodiscard]] std::vector<GeneratedSequence> generate_batch(const ModulePtr<DecoderForCausalLM>& model,
                                                            const std::vector<std::vector<std::int64_t>>& prompts,
                                                            const GenerateOptions& options);

// generate() for models of bytes, whose token ids are bytes. Ids above 255 become '?'.
[[nodiscard]] std::string generate_bytes(TokenModel& model, std::string_view prompt, const GenerateOptions& options);
[[nodiscard]] std::string generate_bytes(const ModulePtr<DecoderForCausalLM>& model, std::string_view prompt,
                                         const GenerateOptions& options);

}  // namespace d9d
