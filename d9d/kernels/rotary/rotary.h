// Rotary position embedding (Su et al., arXiv:2104.09864) of queries and keys.
//
//   out[i] = x[i] * cos[i] + rotated(x)[i] * sin[i]      for the first Dr channels; the others are copied
//
// Example
//   const auto [q_rotated, k_rotated] = kernels::apply_rotary(q, k, cos, sin, kernels::RotaryStyle::kHalf);
#pragma once

#include <cstdint>
#include <utility>

#include <ATen/core/Tensor.h>

namespace d9d::kernels {

// Which two channels are rotated with each other. The tables must be built for the same style.
enum class RotaryStyle : std::uint8_t {
  kHalf,         // i and i + Dr/2 (Llama, Qwen): rotated([a, b]) = [-b, a]
  kInterleaved,  // 2i and 2i + 1 (GPT-J): rotated(x0, x1) = (-x1, x0)
};

// Legend    B = batch, S = sequence, D = head channels, Dr = rotated channels (even, <= D: partial RoPE when smaller).
// q, k      [B, S, heads, D] of one floating dtype and device; their numbers of heads may differ; any strides, may be
//           empty.
// cos, sin  [B, S, Dr] or [1, S, Dr], floating, any dtype; constants that must not require a gradient.
// Returns   {q, k} rotated, contiguous. Computed in at least fp32 with one rounding at the end.
// Differentiable once in q and k; saves only the tables for the backward.
// Local. Throws ConfigError on shapes, dtypes or devices that do not fit and on tables that require a gradient.
[[nodiscard]] std::pair<at::Tensor, at::Tensor> apply_rotary(const at::Tensor& q, const at::Tensor& k,
                                                             const at::Tensor& cos, const at::Tensor& sin,
                                                             RotaryStyle style);

}  // namespace d9d::kernels
