#include "d9d/kernels/device/launch.cuh"

#include "squared_relu_kernel.h"

namespace {

constexpr int kBlock = 256;

__global__ void forward(const float* x, const float* weight, float* out, std::int64_t size, std::int64_t N) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kBlock + threadIdx.x;
  if (i >= size) return;
  const float positive = fmaxf(x[i], 0.0F);
  out[i] = weight[i % N] * positive * positive;
}

__global__ void grad_x_of(const float* grad_out, const float* x, const float* weight, float* grad_x, std::int64_t size,
                          std::int64_t N) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kBlock + threadIdx.x;
  if (i < size) grad_x[i] = grad_out[i] * weight[i % N] * 2.0F * fmaxf(x[i], 0.0F);
}

__global__ void grad_weight_of(const float* grad_out, const float* x, float* grad_weight, std::int64_t R,
                               std::int64_t N) {
  const std::int64_t column = std::int64_t{blockIdx.x} * kBlock + threadIdx.x;
  if (column >= N) return;
  float sum = 0.0F;  // one thread for each column adds the rows in order: the same bits in every run
  for (std::int64_t i = column; i < R * N; i += N) sum += grad_out[i] * fmaxf(x[i], 0.0F) * fmaxf(x[i], 0.0F);
  grad_weight[column] = sum;
}

}  // namespace

using d9d::kernels::detail::check_launch;
using d9d::kernels::detail::num_blocks;

void launch_squared_relu(const float* x, const float* weight, float* out, std::int64_t R, std::int64_t N,
                         CUstream_st* stream) {
  forward<<<num_blocks(R * N, kBlock), kBlock, 0, stream>>>(x, weight, out, R * N, N);
  check_launch("squared_relu");
}
void launch_squared_relu_grad_x(const float* grad_out, const float* x, const float* weight, float* grad_x,
                                std::int64_t R, std::int64_t N, CUstream_st* stream) {
  grad_x_of<<<num_blocks(R * N, kBlock), kBlock, 0, stream>>>(grad_out, x, weight, grad_x, R * N, N);
  check_launch("squared_relu");
}
void launch_squared_relu_grad_weight(const float* grad_out, const float* x, float* grad_weight, std::int64_t R,
                                     std::int64_t N, CUstream_st* stream) {
  grad_weight_of<<<num_blocks(N, kBlock), kBlock, 0, stream>>>(grad_out, x, grad_weight, R, N);
  check_launch("squared_relu");
}
