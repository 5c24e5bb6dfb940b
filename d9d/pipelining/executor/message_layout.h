// How the leaves of a transfer lie in one message: one after the other, each at a multiple of 16 bytes.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace d9d {

// like: shapes and dtypes of the leaves, on any device.
[[nodiscard]] std::int64_t message_bytes(const std::vector<at::Tensor>& like);

// The leaf's values as its memory must have them, in a message: of a conjugate that is not yet computed, computed.
[[nodiscard]] at::Tensor contiguous_values(const at::Tensor& leaf);

// The part of each leaf of a message kByte [message_bytes(like)], in its shape and dtype. Each may be modified in place
// without the others.
[[nodiscard]] std::vector<at::Tensor> parts_of(const at::Tensor& message, const std::vector<at::Tensor>& like);

}  // namespace d9d
