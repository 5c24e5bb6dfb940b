// The arithmetic of grouped_mm by this library's kernels for Hopper, without autograd and without synchronising.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "d9d/kernels/grouped_mm/grouped_mm.h"

namespace d9d::kernels::detail {

// Whether the kernels take rows like x and this many groups.
[[nodiscard]] bool has_grouped_mm_kernels(const at::Tensor& x, std::int64_t num_groups);

// All take x [N, in] and y [N, out] of any strides, and offsets [G + 1] int32 on the same device.
// One or two pairs of x and w [G, in, out], which may be transposed views; both pairs have the same shapes. Returns the
// sum of their grouped products [N, out], rounded once; rows that belong to no group are undefined.
[[nodiscard]] at::Tensor grouped_gemm_cuda(at::ArrayRef<at::Tensor> x, at::ArrayRef<at::Tensor> w,
                                           const at::Tensor& offsets);
// Returns the weight gradient [G, in, out] in the dtype of x.
[[nodiscard]] at::Tensor grouped_gemm_wgrad_cuda(const at::Tensor& x, const at::Tensor& y, const at::Tensor& offsets);
// Writes the weight gradient to out [G, in, out], bf16 or float, any strides.
void write_grouped_gemm_wgrad_cuda(const at::Tensor& out, const at::Tensor& x, const at::Tensor& y,
                                   const at::Tensor& offsets, GradientWrite write);

}  // namespace d9d::kernels::detail
