// The arithmetic of grouped_mm in ATen, without autograd. The forward and both gradients are products over row groups.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace d9d::kernels::detail {

// x: [N, in], w: [G, in, out], counts: the rows of each of G groups, which add up to N. Returns y [N, out] with
// y[rows of g] = x[rows of g] @ w[g].
[[nodiscard]] at::Tensor grouped_gemm_loop(const at::Tensor& x, const at::Tensor& w,
                                           const std::vector<std::int64_t>& counts);
// x: [N, in], y: [N, out]. Returns dw [G, in, out] with dw[g] = x[rows of g]^T @ y[rows of g], zero for a group without
// rows.
[[nodiscard]] at::Tensor grouped_gemm_wgrad_loop(const at::Tensor& x, const at::Tensor& y,
                                                 const std::vector<std::int64_t>& counts);

// The same two by LibTorch's grouped kernel; ends: [G] int32 on the device, the end row of each group.
[[nodiscard]] at::Tensor grouped_gemm_torch(const at::Tensor& x, const at::Tensor& w, const at::Tensor& ends);
[[nodiscard]] at::Tensor grouped_gemm_wgrad_torch(const at::Tensor& x, const at::Tensor& y, const at::Tensor& ends);

}  // namespace d9d::kernels::detail
