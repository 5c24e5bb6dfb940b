// The mathematics of apply_rotary for one tensor of any device, without autograd. Other implementations are measured
// against it.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "d9d/kernels/rotary/rotary.h"

namespace d9d::kernels::detail {

enum class RotaryPass : std::uint8_t {
  kForward,
  kBackward,  // the transposed map: for tables of cosines and sines, the rotation by the opposite angle
};

// x [B, S, heads, D]; cos, sin [B or 1, S, Dr] in the accumulator dtype: fp64 for fp64 x, otherwise fp32.
[[nodiscard]] at::Tensor rotate_aten(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                                     RotaryStyle style, RotaryPass pass);

}  // namespace d9d::kernels::detail
