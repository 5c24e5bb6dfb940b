// Launchers of the example's kernels. Uses no LibTorch headers, so that nvcc never parses ATen.
#pragma once

#include <cstdint>

struct CUstream_st;  // cudaStream_t is a pointer to it

// Legend   R rows, N columns; contiguous float arrays on one device. Launched on `stream` without waiting.
// out [R, N] = weight [N] * relu(x [R, N])^2
void launch_squared_relu(const float* x, const float* weight, float* out, std::int64_t R, std::int64_t N,
                         CUstream_st* stream);
// grad_x [R, N] = grad_out * weight * 2 relu(x)
void launch_squared_relu_grad_x(const float* grad_out, const float* x, const float* weight, float* grad_x,
                                std::int64_t R, std::int64_t N, CUstream_st* stream);
// grad_weight [N] = sum over rows of grad_out * relu(x)^2
void launch_squared_relu_grad_weight(const float* grad_out, const float* x, float* grad_weight, std::int64_t R,
                                     std::int64_t N, CUstream_st* stream);
