// The CUDA kernel of adamw_. Free of torch headers.
#pragma once

#include <cstdint>

#include "d9d/base/dtype.h"
#include "d9d/core/device/cuda_function.h"
#include "d9d/core/rng/random_stream.h"
#include "d9d/kernels/common/tensor_chunks.h"
#include "d9d/kernels/stochastic/noise_layout.h"

struct CUstream_st;

namespace d9d::kernels::detail {

// Selects the kernel. Without stochastic rounding, parameter and gradient are fp32 or bf16 and the moments fp32; with
// it, the parameter is bf16 and gradient and moments are fp32 or bf16.
struct AdamWVariant {
  Dtype parameter = Dtype::kFloat32;
  Dtype grad = Dtype::kFloat32;
  Dtype moments = Dtype::kFloat32;
  bool rounds_stochastically = false;
  NoiseLayout layout = NoiseLayout::kOneRow;  // used with stochastic rounding
  auto operator<=>(const AdamWVariant&) const = default;
};

struct AdamWPointers {
  void* parameter;
  const void* grad;
  void* exp_avg;
  void* exp_avg_sq;
  std::int64_t size;
  std::uint64_t rounding_key;
  ElementRows rows;
};

// Numbers that are the same for every element.
struct AdamWNumbers {
  float parameter_decay;
  float gradient_decay;  // of the parameter, added to the gradient
  float weight1;         // 1 - beta1
  float beta2;
  float weight2;  // 1 - beta2
  float step_size;
  float inverse_correction2;  // 1 / sqrt(1 - beta2^step)
  float eps;
  double grad_factor;        // gradients are multiplied by grad_factor * *grad_scale
  const double* grad_scale;  // on the device; null counts as 1
  std::uint64_t rounding_step;
};

constexpr int kMaxAdamWTensors = 384;  // as many as fit in a kernel's parameters

struct AdamWArgs {
  AdamWNumbers numbers;
  TensorChunks<kMaxAdamWTensors> chunks;  // chunks of adamw_chunk_size() elements
  AdamWPointers tensors[kMaxAdamWTensors];
};
static_assert(sizeof(AdamWArgs) <= 32764);

// Elements of a pack, the neighbours that a thread updates at a time.
extern "C" std::int64_t d9d_adamw_pack_size(const AdamWVariant& variant);
inline constexpr CudaFunction<"d9d_adamw_pack_size", decltype(d9d_adamw_pack_size)> adamw_pack_size;
extern "C" std::int64_t d9d_adamw_chunk_size(const AdamWVariant& variant);
inline constexpr CudaFunction<"d9d_adamw_chunk_size", decltype(d9d_adamw_chunk_size)> adamw_chunk_size;

// Updates all tensors of args, at least one, in one launch. Changes nothing if *grad_scale or grad_factor is NaN.
extern "C" void d9d_launch_adamw(const AdamWVariant& variant, const AdamWArgs& args, CUstream_st* stream);
inline constexpr CudaFunction<"d9d_launch_adamw", decltype(d9d_launch_adamw)> launch_adamw;

}  // namespace d9d::kernels::detail
