// Copies float values into bfloat16 so that rounding keeps their mean: each is rounded up or down at random, in
// proportion to its distance. What sums of small updates need, which rounding to nearest loses.
//
// Example
//   copy_fp32_to_bf16_stochastic_(weight, updated, {.key = philox_key(seed, "rounding", "weight"), .step = step});
#pragma once

#include <ATen/core/Tensor.h>

#include "d9d/core/rng/random_stream.h"

namespace d9d::kernels {

// target bfloat16 and contiguous, source float32 of its shape. The random bits of an element depend on `stream` and on
// the element of the whole tensor that it is (`rows`), so they do not depend on how the tensor is cut, and CPU and CUDA
// give the same bits. NaN stays NaN, infinities and representable values do not change. Throws ConfigError on other
// dtypes, shapes, devices and strides of the target.
void copy_fp32_to_bf16_stochastic_(const at::Tensor& target, const at::Tensor& source, RandomStream stream,
                                   const ElementRows& rows = {});

}  // namespace d9d::kernels
