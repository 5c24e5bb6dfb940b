// Brings matrices into the layout that grouped kernels require: dense, row-major or column-major, with rows or columns
// that start at multiples of 16 bytes. Added features are zero.
#pragma once

#include <ATen/core/Tensor.h>

namespace d9d::kernels::detail {

// x: [N, features].
[[nodiscard]] at::Tensor pad_rows(const at::Tensor& x);
// w: [G, in, out], contiguous or a transposed view, which stays a transposed view if no padding is needed.
[[nodiscard]] at::Tensor pad_weights(const at::Tensor& w);

}  // namespace d9d::kernels::detail
