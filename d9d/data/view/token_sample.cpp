#include "d9d/data/view/token_sample.h"

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
  }
  return collate_padded(samples);
}

TokenBatch collate_padded(std::span<const TokenSample> samples) {
  return {.input_ids = pad_stack_1d(column(samples, &TokenSample::input_ids), {.pad_value = 0}),
          .labels = pad_stack_1d(column(samples, &TokenSample::labels), {.pad_value = kIgnoreIndex}),
          .position_ids = pad_stack_1d(column(samples, &TokenSample::position_ids), {.pad_value = 0})};
}

}  // namespace d9d
