// How the leaves of a transfer lie in one message: one after the other, each at a multiple of 16 bytes.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace d9d {

// like: shapes and dtypes of the leaves, on any device.
[[nodiscard]] std::int64_t message_bytes(const std::vector<at::Tensor>& like);

// The part of each leaf of a message kByte [message_bytes(like)], in its shape and dtype.
[[nodiscard]] std::vector<at::Tensor> parts_of(const at::Tensor& message, const std::vector<at::Tensor>& like);

}  // namespace d9d
