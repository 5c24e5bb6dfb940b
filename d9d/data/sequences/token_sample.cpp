#include "d9d/data/sequences/token_sample.h"

#include <algorithm>
#include <numeric>

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/base/rounding.h"
#include "d9d/data/sequences/padding.h"

namespace d9d {

namespace {

std::vector<at::Tensor> column(std::span<const TokenSample> samples, at::Tensor TokenSample::*member) {
  std::vector<at::Tensor> tensors;
  for (const TokenSample& sample : samples) tensors.push_back(sample.*member);
  return tensors;
}

// Returns, for each sequence, the number of positions that are data and not padding; empty if it is `length` for all.
std::vector<std::int64_t> lengths_of(std::span<const TokenSample> samples, std::int64_t length) {
  std::vector<std::int64_t> lengths;
  for (const TokenSample& sample : samples) lengths.push_back(sample.input_ids.size(0) - sample.num_padding);
  const bool has_padding = std::ranges::any_of(lengths, [length](std::int64_t own) { return own < length; });
  return has_padding ? lengths : std::vector<std::int64_t>();
}

// Stacks sequences and pads them to the length of the longest, rounded up to a multiple of `multiple`, but at least to
// `multiple`.
TokenBatch stack(std::span<const TokenSample> samples, std::int64_t multiple) {
  std::vector<at::Tensor> ids = column(samples, &TokenSample::input_ids);
  std::vector<at::Tensor> labels = column(samples, &TokenSample::labels);
  std::vector<at::Tensor> positions = column(samples, &TokenSample::position_ids);
  const auto pad = [&](const std::vector<at::Tensor>& rows, double value) {
    const bool is_empty = std::ranges::all_of(rows, [](const at::Tensor& row) { return row.numel() == 0; });
    if (!is_empty || rows.empty()) return pad_stack_1d(rows, {.pad_value = value, .multiple_of = multiple});
    return at::full({std::ssize(rows), multiple}, value, rows.front().options());
  };
  TokenBatch batch{.input_ids = pad(ids, 0), .labels = pad(labels, kIgnoreIndex), .position_ids = pad(positions, 0)};
  batch.lengths = lengths_of(samples, batch.input_ids.size(1));
  return batch;
}

PackedSequences boundaries_of(std::span<const TokenSample> samples) {
  std::vector<std::int32_t> ends{0};
  std::int64_t max_length = 0;
  for (const TokenSample& sample : samples) {
    const std::int64_t total =
        std::accumulate(sample.packed_lengths.begin(), sample.packed_lengths.end(), std::int64_t{0});
    D9D_CHECK(total == sample.input_ids.size(0), ConfigError,
              "[data::collate_fixed] expected packed_lengths that sum to the ", sample.input_ids.size(0),
              " positions of a sequence, got ", total, ". No document may be in two sequences: end it with its row.");
    for (const std::int64_t length : sample.packed_lengths) {
      ends.push_back(ends.back() + static_cast<std::int32_t>(length));
      max_length = std::max(max_length, length);
    }
  }
  return {.cu_seqlens = at::tensor(ends, at::kInt), .max_length = max_length};
}

// Adds padding at the end.
void lengthen(TokenSample& sample, std::int64_t length) {
  const std::int64_t added = length - sample.input_ids.size(0);
  if (added == 0) return;
  sample.input_ids = at::constant_pad_nd(sample.input_ids, {0, added}, 0);
  sample.labels = at::constant_pad_nd(sample.labels, {0, added}, kIgnoreIndex);
  sample.position_ids = at::constant_pad_nd(sample.position_ids, {0, added}, 0);
  if (!sample.packed_lengths.empty()) sample.packed_lengths.push_back(added);
  sample.num_padding += added;
}

}  // namespace

TokenSample next_token_sample(const at::Tensor& tokens) {
  D9D_CHECK(tokens.dim() == 1 && tokens.size(0) >= 2 && tokens.scalar_type() == at::kLong, ConfigError,
            "[data::next_token_sample] expected int64 tokens of shape [n + 1] with n >= 1, got ", tokens.scalar_type(),
            " ", tokens.sizes(), ". Drop samples that are shorter than two tokens.");
  const std::int64_t length = tokens.size(0) - 1;
  return {.input_ids = tokens.narrow(0, 0, length),
          .labels = tokens.narrow(0, 1, length),
          .position_ids = at::arange(length, tokens.options())};
}

TokenBatch collate_fixed(std::span<const TokenSample> samples) {
  for (const TokenSample& sample : samples) {
    const auto expected = samples.front().input_ids.size(0), length = sample.input_ids.size(0);
    D9D_CHECK(length == expected, ConfigError, "[data::collate_fixed] expected sequences of ", expected,
              " tokens like the first, got ", length, ". Use collate_padded for sequences of any lengths.");
    D9D_CHECK(sample.packed_lengths.empty() == samples.front().packed_lengths.empty(), ConfigError,
              "[data::collate_fixed] expected sequences that are all packed or all not, got both. Sources of a mixture "
              "have one view.");
  }
  TokenBatch batch = stack(samples, 1);
  if (!samples.front().packed_lengths.empty()) batch.packed = boundaries_of(samples);
  return batch;
}

TokenBatch collate_fixed_to_multiple(std::span<const TokenSample> samples, std::int64_t multiple) {
  std::vector<TokenSample> padded(samples.begin(), samples.end());
  for (TokenSample& sample : padded) lengthen(sample, round_up(sample.input_ids.size(0), multiple));
  return collate_fixed(padded);
}

void make_padding(TokenSample& sample) {
  sample.num_padding = sample.input_ids.size(0);
  sample.labels = at::full_like(sample.labels, kIgnoreIndex);
}

TokenBatch collate_padded(std::span<const TokenSample> samples) { return collate_padded_to_multiple(samples, 1); }

TokenBatch collate_padded_to_multiple(std::span<const TokenSample> samples, std::int64_t multiple) {
  for (const TokenSample& sample : samples) {
    D9D_CHECK(sample.packed_lengths.empty(), ConfigError,
              "[data::collate_padded] expected sequences of one document, got one of ", sample.packed_lengths.size(),
              ". Use collate_fixed for packed sequences.");
  }
  return stack(samples, multiple);
}

std::optional<at::Tensor> real_positions(const TokenBatch& batch, const std::vector<FlatRange>& ranges,
                                         at::Device device) {
  if (batch.lengths.empty()) return std::nullopt;
  D9D_CHECK(std::ssize(batch.lengths) == batch.input_ids.size(0), ConfigError,
            "[data::TokenBatch] expected a length for each of ", batch.input_ids.size(0), " sequences, got ",
            batch.lengths.size(), ". Leave `lengths` empty if there is no padding.");
  const at::TensorOptions options = at::TensorOptions(at::kLong).device(device);
  std::vector<at::Tensor> of_ranges;
  std::int64_t first = 0;  // index of the range's first position
  std::int64_t num_padding = 0;
  for (const std::int64_t length : batch.lengths) {
    for (const FlatRange& range : ranges) {
      const std::int64_t count = std::clamp<std::int64_t>(length - range.begin, 0, range.numel());
      of_ranges.push_back(at::arange(first, first + count, options));
      first += range.numel();
      num_padding += range.numel() - count;
    }
  }
  return num_padding > 0 ? std::optional(at::cat(of_ranges)) : std::nullopt;
}

}  // namespace d9d
