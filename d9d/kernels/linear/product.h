// The product of linears and heads forward, without autograd.
//
// Legend   R rows, C columns of the result, K terms of each sum
#pragma once

#include <ATen/core/Tensor.h>

namespace d9d::kernels::detail {

// x [R, K] times weight [C, K]^T, of one floating dtype -> [R, C].
[[nodiscard]] at::Tensor rows_product(const at::Tensor& x, const at::Tensor& weight);

// The same into `out` [R, C], which is of their dtype; on a GPU also float for factors of two bytes.
void write_rows_product(const at::Tensor& out, const at::Tensor& x, const at::Tensor& weight);

// Does the same by cublas_product.h where that is faster: on a Hopper GPU, for two-byte factors and millions of
// results, which take long to write. False elsewhere; nothing is done then.
[[nodiscard]] bool write_rows_product_by_cublas(const at::Tensor& out, const at::Tensor& x, const at::Tensor& weight);

}  // namespace d9d::kernels::detail
