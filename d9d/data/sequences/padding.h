// Makes batches from sequences of different lengths, and masks that select tokens in them.
//
// Example
//   pad_stack_1d({tensor({1, 2, 3}), tensor({4})}, {.pad_value = 0, .multiple_of = 4});   // [[1 2 3 0], [4 0 0 0]]
//   token_pooling_mask_from_attention_mask(attention_mask, TokenPooling::kLast);          // 1 at each row's last token
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace d9d {

enum class PaddingSide { kLeft, kRight };

struct PadOptions {
  double pad_value = 0;
  PaddingSide side = PaddingSide::kRight;
  std::optional<std::int64_t> multiple_of = {};  // rounds the common length up
};

// Stacks B tensors of shape [n_i] and one dtype into [B, L]: L is the largest n_i, rounded up to a multiple of
// options.multiple_of, to which shorter tensors are padded. Throws ConfigError if there is no item, if an item does not
// have one dimension and the dtype of the first, or if multiple_of < 1.
[[nodiscard]] at::Tensor pad_stack_1d(const std::vector<at::Tensor>& items, PadOptions options);

enum class TokenPooling { kFirst, kLast, kAll };

// Marks the tokens that represent a sequence. `mask` is [B, T] with 1 at tokens and 0 at padding, which may be on
// either side. kFirst, kLast: returns [B, T] int64 with a single 1 in each row, at its first or last token, or at the
// first or last column if the row has no tokens. kAll: returns `mask` itself, with its dtype.
[[nodiscard]] at::Tensor token_pooling_mask_from_attention_mask(const at::Tensor& mask, TokenPooling pooling);

}  // namespace d9d
