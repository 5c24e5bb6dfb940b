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
#include "d9d/core/dtensor/layout.h"
#include "d9d/core/packed_sequences/packed_sequences.h"

namespace d9d {

// One sequence; all tensors are [n] int64.
struct TokenSample {
  at::Tensor input_ids;
  at::Tensor labels;        // labels[i] is the token after input_ids[i]; kIgnoreIndex: not predicted
  at::Tensor position_ids;  // 0..n-1; from 0 on in each document of a packed sequence
  // Number of positions of each document of a packed sequence, and of its padding, in order; they sum to n. Empty: not
  // packed.
  std::vector<std::int64_t> packed_lengths = {};
  std::int64_t num_padding = 0;  // number of positions at the end that are padding
  static constexpr auto fields() {
    return record<TokenSample>(field("input_ids", &TokenSample::input_ids), field("labels", &TokenSample::labels),
                               field("position_ids", &TokenSample::position_ids),
                               field("packed_lengths", &TokenSample::packed_lengths),
                               field("num_padding", &TokenSample::num_padding));
  }
};

// One microbatch of B sequences of S positions; all tensors are [B, S] int64.
struct TokenBatch {
  at::Tensor input_ids;
  at::Tensor labels;
  at::Tensor position_ids;
  // Document boundaries among the B * S positions, those of rows among them; padding counts as a document. Unset: each
  // sequence is one document.
  std::optional<PackedSequences> packed = {};
  // B numbers: the first lengths[b] positions of sequence b are data, the others padding. They are on the host, so that
  // counting does not wait for a GPU. Empty: there is no padding.
  std::vector<std::int64_t> lengths = {};
  static constexpr auto fields() {
    return record<TokenBatch>(field("input_ids", &TokenBatch::input_ids), field("labels", &TokenBatch::labels),
                              field("position_ids", &TokenBatch::position_ids), field("packed", &TokenBatch::packed),
                              field("lengths", &TokenBatch::lengths));
  }
};

// Turns all positions of a sample into padding without labels. Loaders call this function for a sample that a rank
// reads only to have as many samples or microbatches as the other ranks; such a sample changes neither the loss nor a
// metric.
void make_padding(TokenSample& sample);

// Makes a sample for next-token prediction: inputs are all tokens except the last, labels all except the first. Both
// are views of `tokens` ([n + 1] int64, n >= 1).
[[nodiscard]] TokenSample next_token_sample(const at::Tensor& tokens);

// Stacks sequences of equal length; if they are packed, the batch gets their document boundaries (TokenBatch::packed).
// Throws ConfigError if there is no sample, if lengths differ, if only some are packed, or if packed_lengths do not sum
// to the positions.
[[nodiscard]] TokenBatch collate_fixed(std::span<const TokenSample> samples);
// The same with each sequence padded at its end to a multiple of `multiple` positions, so that ranks can share it
// (DeviceMeshParameters::position_divisor()). The padding of a packed sequence is a document.
[[nodiscard]] TokenBatch collate_fixed_to_multiple(std::span<const TokenSample> samples, std::int64_t multiple);

// Stacks sequences of any lengths, padded on the right to the longest (at least one position) with input 0, label
// kIgnoreIndex and position 0. Causal attention and ignored labels make an attention mask unnecessary; `lengths` says
// what is padding. Throws ConfigError if there is no sample, or a packed one.
[[nodiscard]] TokenBatch collate_padded(std::span<const TokenSample> samples);
// Calls collate_padded() but pads to a multiple of `multiple` positions, so that ranks can share each sequence
// (DeviceMeshParameters::position_divisor()).
[[nodiscard]] TokenBatch collate_padded_to_multiple(std::span<const TokenSample> samples, std::int64_t multiple);

// Returns which positions in `ranges` of each sequence, such as those of a rank (PositionCut), are data and not
// padding: their flat indices in a [B, number of positions in the ranges] tensor, ascending, as [n] int64 on `device`.
// nullopt: all are data. Does not synchronise with the device.
[[nodiscard]] std::optional<at::Tensor> real_positions(const TokenBatch& batch, const std::vector<FlatRange>& ranges,
                                                       at::Device device);

}  // namespace d9d
