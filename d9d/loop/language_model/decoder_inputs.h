// What a causal decoder reads of a microbatch of token sequences, for tasks that train one.
//
// Example
//   DecoderInputs inputs = decoder_inputs(batch, positions, {});
//   return {.input = inputs.input, .shared = inputs.shared, .state = ..., .num_tokens = inputs.num_tokens};
#pragma once

#include <cstdint>

#include "d9d/core/dtensor/position_cut.h"
#include "d9d/data/sequences/token_sample.h"
#include "d9d/models/decoder/decoder_with_head.h"

namespace d9d {

struct LanguageModelTaskOptions {
  // Whether layers get SequenceShared::real_positions for microbatches with padding. Models with experts need them. If
  // false, microbatches that only differ in padding are of one kind for CUDA graphs.
  bool tells_padding = true;
};

// This rank's positions of the sequences, [B, S / W] on each of W ranks that share them, and the ends of all documents.
struct DecoderInputs {
  SequenceInput input;
  DecoderForCausalLM::Shared shared;  // labels: shared.head.labels
  std::int64_t num_tokens = 0;        // positions without padding
};

// Local. positions: context_parallel_cut() of the ranks that share a sequence. Boundaries of packed sequences are those
// of all ranks. Throws ConfigError unless the length of the sequences is a multiple of positions.divisor().
[[nodiscard]] DecoderInputs decoder_inputs(const TokenBatch& batch, const PositionCut& positions,
                                           const LanguageModelTaskOptions& options);

}  // namespace d9d
