// Implementations of copy_fp32_to_bf16_stochastic_; all give the same bits.
#pragma once

#include <ATen/core/Tensor.h>

#include "d9d/core/rng/random_stream.h"

namespace d9d::kernels::detail {

// target is bfloat16, source float32; both have one shape and are contiguous.
struct StochasticCopy {
  at::Tensor target;
  at::Tensor source;
  RandomStream stream;
  ElementRows rows;
};

void copy_stochastic_cpu(const StochasticCopy& copy);
void copy_stochastic_cuda(const StochasticCopy& copy);
// Runs on any device. Draws the random bits on the host and copies them synchronously to the device.
void copy_stochastic_aten(const StochasticCopy& copy);

// Rounds `size` values to `to`. The first value is element `first` of the part of a tensor that `rows` describes.
void round_stochastically(const float* from, std::int64_t size, std::int64_t first, RandomStream stream,
                          const ElementRows& rows, c10::BFloat16* to);

}  // namespace d9d::kernels::detail
