// The contents of one sequence, and of one microbatch of sequences, for next-token prediction.
//
// Example
//   const TokenSample sample = next_token_sample(tokens);                  // n + 1 tokens -> sequences of n
//   const TokenBatch batch = collate_fixed(std::vector{sample, other});    // [2, n]
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/base/ignore_index.h"
#include "d9d/base/record.h"
#include "d9d/core/packed_sequences/packed_sequences.h"

namespace d9d {

// All [n] int64.
struct TokenSample {
  at::Tensor input_ids;
  at::Tensor labels;        // labels[i] follows input_ids[i]; kIgnoreIndex: nothing to predict
  at::Tensor position_ids;  // 0..n-1; from 0 on in each document of a packed sequence
  // Positions of each document of a packed sequence, and of its padding, in order: n together. Empty: not packed.
  std::vector<std::int64_t> packed_lengths = {};
  static constexpr auto fields() {
    return record<TokenSample>(field("input_ids", &TokenSample::input_ids), field("labels", &TokenSample::labels),
                               field("position_ids", &TokenSample::position_ids),
                               field("packed_lengths", &TokenSample::packed_lengths));
  }
};

// All [B, S] int64: B sequences of S positions.
struct TokenBatch {
  at::Tensor input_ids;
  at::Tensor labels;
  at::Tensor position_ids;
  // Where the documents end in the order of the B * S positions; padding is one. Unset: each sequence is a document.
  std::optional<PackedSequences> packed = {};
  static constexpr auto fields() {
    return record<TokenBatch>(field("input_ids", &TokenBatch::input_ids), field("labels", &TokenBatch::labels),
                              field("position_ids", &TokenBatch::position_ids), field("packed", &TokenBatch::packed));
  }
};

// Inputs are all tokens except the last, labels all except the first. Both are views of `tokens` ([n + 1] int64, n >=
// 1).
[[nodiscard]] TokenSample next_token_sample(const at::Tensor& tokens);

// Stacks sequences of one length; of packed sequences the batch has the boundaries. Throws ConfigError if there are
// none, if lengths differ, or if only some are packed.
[[nodiscard]] TokenBatch collate_fixed(std::span<const TokenSample> samples);

// Stacks sequences of any lengths, padded on the right to the longest (at least one position) with input 0, label
// kIgnoreIndex and position 0. Causal attention and ignored labels make an attention mask unnecessary. Throws
// ConfigError if there is no sample, or a packed one.
[[nodiscard]] TokenBatch collate_padded(std::span<const TokenSample> samples);

}  // namespace d9d
