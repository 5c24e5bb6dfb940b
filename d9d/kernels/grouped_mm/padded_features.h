// Matrices as grouped kernels want them: dense, by rows or by columns, whose rows or columns start at multiples of 16
// bytes. Features that are added are zero.
#pragma once

#include <ATen/core/Tensor.h>

namespace d9d::kernels::detail {

// x: [N, features].
[[nodiscard]] at::Tensor pad_rows(const at::Tensor& x);
// w: [G, in, out], or a transposed view of such, which stays one where nothing is added.
[[nodiscard]] at::Tensor pad_weights(const at::Tensor& w);

}  // namespace d9d::kernels::detail
