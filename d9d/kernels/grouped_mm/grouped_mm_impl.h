// Implementations of grouped_mm without autograd: products over row groups, in ATen one after the other or by
// LibTorch's grouped kernel, and by this library's kernels for Hopper, which do not synchronise.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/kernels/grouped_mm/grouped_mm.h"

namespace d9d::kernels::detail {

// x: [N, in], w: [G, in, out], counts: the rows of each of G groups, which add up to N. Returns y [N, out] with
// y[rows of g] = x[rows of g] @ w[g].
[[nodiscard]] at::Tensor grouped_gemm_loop(const at::Tensor& x, const at::Tensor& w,
                                           const std::vector<std::int64_t>& counts);
// x: [N, in], y: [N, out]. Returns dw [G, in, out] with dw[g] = x[rows of g]^T @ y[rows of g], zero for a group
// without rows.
[[nodiscard]] at::Tensor grouped_gemm_wgrad_loop(const at::Tensor& x, const at::Tensor& y,
                                                 const std::vector<std::int64_t>& counts);

// The same two by LibTorch's grouped kernel; ends: [G] int32 on the device, the end row of each group.
[[nodiscard]] at::Tensor grouped_gemm_torch(const at::Tensor& x, const at::Tensor& w, const at::Tensor& ends);
[[nodiscard]] at::Tensor grouped_gemm_wgrad_torch(const at::Tensor& x, const at::Tensor& y, const at::Tensor& ends);

// Whether the kernels take rows like x and this many groups.
[[nodiscard]] bool has_grouped_mm_kernels(const at::Tensor& x, std::int64_t num_groups);

// All take x [N, in] and y [N, out] of any strides, and offsets [G + 1] int32 on the same device. One or two pairs of
// x and w [G, in, out], which may be transposed views; both pairs have the same shapes. Returns the sum of their
// grouped products [N, out], rounded once; rows that belong to no group are undefined.
[[nodiscard]] at::Tensor grouped_gemm_cuda(at::ArrayRef<at::Tensor> x, at::ArrayRef<at::Tensor> w,
                                           const at::Tensor& offsets);
// Returns the weight gradient [G, in, out] in the dtype of x.
[[nodiscard]] at::Tensor grouped_gemm_wgrad_cuda(const at::Tensor& x, const at::Tensor& y, const at::Tensor& offsets);
// Writes the weight gradient to out [G, in, out], bf16 or float, any strides.
void write_grouped_gemm_wgrad_cuda(const at::Tensor& out, const at::Tensor& x, const at::Tensor& y,
                                   const at::Tensor& offsets);

// The layout that grouped kernels require: dense, row-major or column-major, with rows or columns that start at
// multiples of 16 bytes. Added features are zero.
// x: [N, features].
[[nodiscard]] at::Tensor pad_rows(const at::Tensor& x);
// w: [G, in, out], contiguous or a transposed view, which stays a transposed view if no padding is needed.
[[nodiscard]] at::Tensor pad_weights(const at::Tensor& w);

}  // namespace d9d::kernels::detail
