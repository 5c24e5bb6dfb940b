// The layout of a transfer's tensors (leaves) in one message: one after the other, each at a multiple of 16 bytes.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace d9d {

// Returns the bytes of one message with these leaves. Only shapes and dtypes of `like` are read: it may be on the meta
// device.
[[nodiscard]] std::int64_t message_bytes(const std::vector<at::Tensor>& like);

// Returns the leaf with its values contiguous in memory. LibTorch's lazy conj() and neg() views are computed.
[[nodiscard]] at::Tensor contiguous_values(const at::Tensor& leaf);

// Returns one view of `message`, kByte [message_bytes(like)], for each leaf, in the leaf's shape and dtype. Each view
// has a version counter of its own: modifying one in place does not count as a modification of the others.
[[nodiscard]] std::vector<at::Tensor> parts_of(const at::Tensor& message, const std::vector<at::Tensor>& like);

}  // namespace d9d
