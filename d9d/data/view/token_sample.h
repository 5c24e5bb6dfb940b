// The contents of one sequence, and of one microbatch of sequences, for next-token prediction.
//
// Example
//   const TokenSample sample = next_token_sample(tokens);                  // n + 1 tokens -> sequences of n
//   const TokenBatch batch = collate_fixed(std::vector{sample, other});    // [2, n]
#pragma once

#include <span>

#include <ATen/core/Tensor.h>

#include "d9d/base/ignore_index.h"
#include "d9d/base/record.h"

namespace d9d {

// All [n] int64.
struct TokenSample {
  at::Tensor input_ids;
  at::Tensor labels;        // labels[i] follows input_ids[i]; kIgnoreIndex: nothing to predict
  at::Tensor position_ids;  // 0..n-1
  static constexpr auto fields() {
    return record<TokenSample>(field("input_ids", &TokenSample::input_ids), field("labels", &TokenSample::labels),
                               field("position_ids", &TokenSample::position_ids));
  }
};

// All [B, S] int64: B sequences of S positions.
struct TokenBatch {
  at::Tensor input_ids;
  at::Tensor labels;
  at::Tensor position_ids;
  static constexpr auto fields() {
    return record<TokenBatch>(field("input_ids", &TokenBatch::input_ids), field("labels", &TokenBatch::labels),
                              field("position_ids", &TokenBatch::position_ids));
  }
};

// Inputs are all tokens except the last, labels all except the first. Both are views of `tokens` ([n + 1] int64, n >=
// 1).
[[nodiscard]] TokenSample next_token_sample(const at::Tensor& tokens);

// Stacks sequences of one length. Throws ConfigError if there are none or if lengths differ.
[[nodiscard]] TokenBatch collate_fixed(std::span<const TokenSample> samples);

// Stacks sequences of any lengths, padded on the right to the longest with input 0, label kIgnoreIndex and position 0.
// Causal attention and ignored labels make an attention mask unnecessary. Throws ConfigError if there is no sample.
[[nodiscard]] TokenBatch collate_padded(std::span<const TokenSample> samples);

}  // namespace d9d
