// Products of matrices into memory that is there, without autograd; forward, those of linears and heads.
//
// Legend   R rows, C columns of the result, K terms of each sum
#pragma once

#include <ATen/core/Tensor.h>

namespace d9d::kernels::detail {

// out = a b, or out += a b; out is in the dtype of a and b, on a GPU also fp32 for factors of two bytes. Sums are at
// least fp32.
void multiply(at::Tensor out, const at::Tensor& a, const at::Tensor& b);
void accumulate(at::Tensor out, const at::Tensor& a, const at::Tensor& b);

// x [R, K] times weight [C, K]^T, of one floating dtype -> [R, C].
[[nodiscard]] at::Tensor rows_product(const at::Tensor& x, const at::Tensor& weight);

// multiply(out, x, weight^T), by the fastest kernel.
void write_rows_product(const at::Tensor& out, const at::Tensor& x, const at::Tensor& weight);

// Does the same by cublas_product.h where that is faster: on a Hopper GPU, for two-byte factors and millions of
// results, which take long to write. False elsewhere; nothing is done then.
[[nodiscard]] bool write_rows_product_by_cublas(const at::Tensor& out, const at::Tensor& x, const at::Tensor& weight);

}  // namespace d9d::kernels::detail
