// Copies float values to bfloat16 with stochastic rounding: each is rounded up or down at random, with probabilities
// that make the mean of the result the value. So sums of small updates are kept that rounding to nearest would lose.
//
// Example
//   copy_fp32_to_bf16_stochastic_(weight, updated, {.key = philox_key(seed, "rounding", "weight"), .step = step});
#pragma once

#include <ATen/core/Tensor.h>

#include "d9d/core/rng/random_stream.h"

namespace d9d::kernels {

// target is bfloat16 and contiguous, source float32 of the same shape and device. The random bits of an element depend
// on `stream` and on its position in the whole tensor (`rows`) only, so they do not depend on how the tensor is
// sharded, and CPU and CUDA give the same bits. NaN stays NaN; infinities and representable values do not change.
// Throws ConfigError on other dtypes, shapes, devices and strides of the target.
void copy_fp32_to_bf16_stochastic_(const at::Tensor& target, const at::Tensor& source, RandomStream stream,
                                   const ElementRows& rows = {});

}  // namespace d9d::kernels
