// The CUDA kernel of momentum_. Free of torch headers.
#pragma once

#include <cstdint>

#include "d9d/base/dtype.h"
#include "d9d/core/device/cuda_function.h"
#include "d9d/kernels/common/tensor_chunks.h"

struct CUstream_st;

namespace d9d::kernels::detail {

// Selects the kernel: fp32 or bf16 parameters and gradients; the buffer is fp32.
struct MomentumVariant {
  Dtype parameter = Dtype::kFloat32;
  Dtype grad = Dtype::kFloat32;
  bool has_buffer = true;
  auto operator<=>(const MomentumVariant&) const = default;
};

struct MomentumPointers {
  void* parameter;
  const void* grad;
  float* buffer;  // null without one
  std::int64_t size;
};

// As MomentumFactors.
struct MomentumNumbers {
  float gradient_decay;
  float buffer_decay;
  float buffer_grad;
  float update_buffer;
  float update_grad;
  float parameter_decay;
  float step_size;
  bool takes_sign;
  double grad_factor;        // gradients are multiplied by grad_factor * *grad_scale
  const double* grad_scale;  // on the device; null counts as 1
};

constexpr int kMaxMomentumTensors = 800;  // as many as fit in a kernel's parameters

struct MomentumArgs {
  MomentumNumbers numbers;
  TensorChunks<kMaxMomentumTensors> chunks;  // chunks of kMomentumChunk elements
  MomentumPointers tensors[kMaxMomentumTensors];
};
static_assert(sizeof(MomentumArgs) <= 32764);

constexpr std::int64_t kMomentumChunk = 8192;

// Updates all tensors of args, at least one, in one launch. Changes nothing if *grad_scale or grad_factor is NaN.
extern "C" void d9d_launch_momentum(const MomentumVariant& variant, const MomentumArgs& args, CUstream_st* stream);
inline constexpr CudaFunction<"d9d_launch_momentum", decltype(d9d_launch_momentum)> launch_momentum;

}  // namespace d9d::kernels::detail
