// Matrix products into existing memory, and the forward product of linears and heads, without autograd.
//
// Legend   R rows and C columns of the result, K terms of each sum
#pragma once

#include <ATen/core/Tensor.h>

namespace d9d::kernels::detail {

// multiply: out = a b; accumulate: out += a b. out has the dtype of a and b; on a GPU it may be fp32 for 2-byte
// factors. Sums are in at least fp32.
void multiply(at::Tensor out, const at::Tensor& a, const at::Tensor& b);
void accumulate(at::Tensor out, const at::Tensor& a, const at::Tensor& b);

// x [R, K] times weight [C, K]^T, both of one floating dtype -> [R, C].
[[nodiscard]] at::Tensor rows_product(const at::Tensor& x, const at::Tensor& weight);

// multiply(out, x, weight^T) by the faster of cuBLAS's first choice and the kernel of cublas_gemm.h.
void write_rows_product(const at::Tensor& out, const at::Tensor& x, const at::Tensor& weight);

// The same by cublas_gemm.h, where that is faster: on a Hopper GPU, for 2-byte factors and results of millions of
// elements, whose writing takes long. Otherwise returns false and does nothing.
[[nodiscard]] bool write_rows_product_by_cublas(const at::Tensor& out, const at::Tensor& x, const at::Tensor& weight);

}  // namespace d9d::kernels::detail
