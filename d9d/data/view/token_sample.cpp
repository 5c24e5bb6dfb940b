#include "d9d/data/view/token_sample.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/data/view/padding.h"

namespace d9d {

namespace {

std::vector<at::Tensor> column(std::span<const TokenSample> samples, at::Tensor TokenSample::*member) {
  std::vector<at::Tensor> tensors;
  for (const TokenSample& sample : samples) tensors.push_back(sample.*member);
  return tensors;
}

TokenBatch stack(std::span<const TokenSample> samples, std::int64_t min_length) {
  std::vector<at::Tensor> ids = column(samples, &TokenSample::input_ids);
  std::vector<at::Tensor> labels = column(samples, &TokenSample::labels);
  std::vector<at::Tensor> positions = column(samples, &TokenSample::position_ids);
  const auto pad = [&](const std::vector<at::Tensor>& rows, double value) {
    const bool is_empty = std::ranges::all_of(rows, [](const at::Tensor& row) { return row.numel() == 0; });
    if (!is_empty || rows.empty()) return pad_stack_1d(rows, {.pad_value = value});
    return at::full({std::ssize(rows), min_length}, value, rows.front().options());
  };
  return {.input_ids = pad(ids, 0), .labels = pad(labels, kIgnoreIndex), .position_ids = pad(positions, 0)};
}

PackedSequences boundaries_of(std::span<const TokenSample> samples) {
  std::vector<std::int32_t> ends{0};
  std::int64_t max_length = 0;
  for (const TokenSample& sample : samples) {
    for (const std::int64_t length : sample.packed_lengths) {
      ends.push_back(ends.back() + static_cast<std::int32_t>(length));
      max_length = std::max(max_length, length);
    }
  }
  return {.cu_seqlens = at::tensor(ends, at::kInt), .max_length = max_length};
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
  TokenBatch batch = stack(samples, 0);
  if (!samples.front().packed_lengths.empty()) batch.packed = boundaries_of(samples);
  return batch;
}

TokenBatch collate_padded(std::span<const TokenSample> samples) {
  for (const TokenSample& sample : samples) {
    D9D_CHECK(sample.packed_lengths.empty(), ConfigError,
              "[data::collate_padded] expected sequences of one document, got one of ", sample.packed_lengths.size(),
              ". Use collate_fixed for packed sequences.");
  }
  return stack(samples, 1);
}

}  // namespace d9d
