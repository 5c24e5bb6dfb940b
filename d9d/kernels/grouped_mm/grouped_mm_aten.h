// The arithmetic of grouped_mm in ATen, without autograd: forward and the two gradients are products over row groups.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace d9d::kernels::detail {

// x: [N, in], w: [G, in, out], counts: G rows a group adding up to N. Returns [N, out]: y[rows] = x[rows] @ w[g].
[[nodiscard]] at::Tensor grouped_gemm_loop(const at::Tensor& x, const at::Tensor& w,
                                           const std::vector<std::int64_t>& counts);
// x: [N, in], y: [N, out]. Returns [G, in, out]: dw[g] = x[rows]^T @ y[rows], zero for a group without rows.
[[nodiscard]] at::Tensor grouped_gemm_wgrad_loop(const at::Tensor& x, const at::Tensor& y,
                                                 const std::vector<std::int64_t>& counts);

// The same two on LibTorch's grouped kernel; ends: [G] int32 on the device, end row of each group.
[[nodiscard]] at::Tensor grouped_gemm_torch(const at::Tensor& x, const at::Tensor& w, const at::Tensor& ends);
[[nodiscard]] at::Tensor grouped_gemm_wgrad_torch(const at::Tensor& x, const at::Tensor& y, const at::Tensor& ends);

}  // namespace d9d::kernels::detail
