#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include "d9d/kernels/common/cpu_loops.h"
#include "d9d/kernels/common/simd.h"
#include "d9d/kernels/silu_mul/silu_mul_impl.h"

namespace d9d::kernels::detail {
namespace {

// to = sigmoid(from)
template <class Vec>
D9D_ALWAYS_INLINE void sigmoid(const Vec& from, Vec& to) {
  to = -from;
  exp_in_place(to);
  to = 1 / (1 + to);
}

template <class T>
D9D_SIMD_CLONES void forward_loop(const T* gate, const T* up, T* out, std::int64_t size) {
  using Vec = typename Lanes<T>::Vec;
  for (std::int64_t i = 0; i < size; i += Lanes<T>::kWidth) {
    const std::int64_t count = std::min(Lanes<T>::kWidth, size - i);
    Vec g, u, s;
    load(gate + i, count, g);
    load(up + i, count, u);
    sigmoid(g, s);
    store<T>(g * s * u, count, out + i);
  }
}

// A gradient that is null is not computed.
template <class T>
D9D_SIMD_CLONES void backward_loop(const T* grad_out, const T* gate, const T* up, T* grad_gate, T* grad_up,
                                   std::int64_t begin, std::int64_t end) {
  using Vec = typename Lanes<T>::Vec;
  for (std::int64_t i = begin; i < end; i += Lanes<T>::kWidth) {
    const std::int64_t count = std::min(Lanes<T>::kWidth, end - i);
    Vec grad, g, s;
    load(grad_out + i, count, grad);
    load(gate + i, count, g);
    sigmoid(g, s);
    if (grad_up != nullptr) store<T>(grad * g * s, count, grad_up + i);
    if (grad_gate != nullptr) {
      Vec u;
      load(up + i, count, u);
      store<T>(grad * u * s * (1 + g * (1 - s)), count, grad_gate + i);
    }
  }
}

}  // namespace

at::Tensor silu_mul_forward_cpu(const at::Tensor& gate, const at::Tensor& up) {
  at::Tensor result = at::empty_like(gate);
  AT_DISPATCH_FLOATING_TYPES_AND(at::kBFloat16, gate.scalar_type(), "silu_mul_forward", [&] {
    const auto* gate_data = gate.const_data_ptr<scalar_t>();
    const auto* up_data = up.const_data_ptr<scalar_t>();
    auto* out = result.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, gate.numel(), kElementsPerTask, [&](std::int64_t begin, std::int64_t end) {
      forward_loop(gate_data + begin, up_data + begin, out + begin, end - begin);
    });
  });
  return result;
}

SiluMulBackward silu_mul_backward_cpu(const at::Tensor& grad_out, const at::Tensor& gate, const at::Tensor& up,
                                      SiluMulWanted wanted) {
  SiluMulBackward result;
  if (wanted.gate) result.gate = at::empty_like(gate);
  if (wanted.up) result.up = at::empty_like(up);
  AT_DISPATCH_FLOATING_TYPES_AND(at::kBFloat16, gate.scalar_type(), "silu_mul_backward", [&] {
    const auto* grad_data = grad_out.const_data_ptr<scalar_t>();
    const auto* gate_data = gate.const_data_ptr<scalar_t>();
    const auto* up_data = up.const_data_ptr<scalar_t>();
    auto* grad_gate = wanted.gate ? result.gate.mutable_data_ptr<scalar_t>() : nullptr;
    auto* grad_up = wanted.up ? result.up.mutable_data_ptr<scalar_t>() : nullptr;
    at::parallel_for(0, gate.numel(), kElementsPerTask, [&](std::int64_t begin, std::int64_t end) {
      backward_loop(grad_data, gate_data, up_data, grad_gate, grad_up, begin, end);
    });
  });
  return result;
}

}  // namespace d9d::kernels::detail
