// Implementations of apply_rotary without autograd. `aten` is the mathematics for one tensor of any device, against
// which the others are measured; `cpu` is one loop over float, double or bfloat16; `cuda` takes what
// has_cuda_kernels() takes, in one pass over the memory of queries and keys.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "d9d/base/check.h"
#include "d9d/kernels/rotary/rotary.h"

namespace d9d::kernels::detail {

inline void check_rotary_arguments(const char* op, const at::Tensor& q, const at::Tensor& k, const at::Tensor& cos,
                                   const at::Tensor& sin) {
  D9D_CHECK(q.dim() == 4 && k.dim() == 4 && q.size(0) == k.size(0) && q.size(1) == k.size(1) && q.size(3) == k.size(3),
            ConfigError, "[kernels::", op, "] expected q and k [B, S, heads, D] of one B, S and D, got ", q.sizes(),
            " and ", k.sizes(), ". Put the sequence before the heads.");
  D9D_CHECK(q.is_floating_point() && q.scalar_type() == k.scalar_type(), ConfigError, "[kernels::", op,
            "] expected q and k of one floating dtype, got ", q.scalar_type(), " and ", k.scalar_type(),
            ". Cast one of the two.");
  D9D_CHECK(cos.dim() == 3 && cos.sizes() == sin.sizes() && (cos.size(0) == q.size(0) || cos.size(0) == 1) &&
                cos.size(1) == q.size(1) && cos.size(2) % 2 == 0 && cos.size(2) <= q.size(3),
            ConfigError, "[kernels::", op, "] expected cos and sin [B or 1, S, Dr] with Dr even and <= D for q ",
            q.sizes(), ", got ", cos.sizes(), " and ", sin.sizes(), ". Gather the tables by position first.");
  D9D_CHECK(cos.is_floating_point() && sin.is_floating_point() && !cos.requires_grad() && !sin.requires_grad(),
            ConfigError, "[kernels::", op, "] expected floating tables without gradient, got cos ", cos.scalar_type(),
            " and sin ", sin.scalar_type(), ", requires_grad ", cos.requires_grad(), " and ", sin.requires_grad(),
            ". Gradients of the tables are not built: detach them.");
  D9D_CHECK(q.device() == k.device() && q.device() == cos.device() && q.device() == sin.device(), ConfigError,
            "[kernels::", op, "] expected q, k, cos and sin on one device, got ", q.device(), ", ", k.device(), ", ",
            cos.device(), " and ", sin.device(), ". Move them.");
}

enum class RotaryPass : std::uint8_t {
  kForward,
  kBackward,  // the transposed map: for tables of cosines and sines, the rotation by the opposite angle
};

// x [B, S, heads, D]; cos, sin [B or 1, S, Dr] in the accumulator dtype: fp64 for fp64 x, otherwise fp32.
[[nodiscard]] at::Tensor rotate_aten(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                                     RotaryStyle style, RotaryPass pass);

// x may be strided; the tables are contiguous.
[[nodiscard]] at::Tensor rotate_cpu(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                                    RotaryStyle style, RotaryPass pass);

struct RotatedHeads {
  at::Tensor first;
  at::Tensor second;
};

// Either tensor may be undefined; its result is then undefined too. cos and sin may have any floating dtype.
[[nodiscard]] RotatedHeads rotate_cuda(const at::Tensor& first, const at::Tensor& second, const at::Tensor& cos,
                                       const at::Tensor& sin, RotaryStyle style, RotaryPass pass);

}  // namespace d9d::kernels::detail
