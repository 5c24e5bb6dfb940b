#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "d9d/kernels/common/cpu_loops.h"
#include "d9d/kernels/common/simd.h"
#include "d9d/kernels/momentum/momentum_impl.h"

namespace d9d::kernels::detail {
namespace {

// Arrays of one parameter; buffer is null without one.
template <class P, class G>
struct Arrays {
  P* parameter;
  const G* grad;
  typename Lanes<P>::Accumulator* buffer;
};

template <class P, class G>
D9D_SIMD_CLONES void update_range(const Arrays<P, G>& arrays, const MomentumFactors& factors, double scale,
                                  std::int64_t begin, std::int64_t end) {
  using A = typename Lanes<P>::Accumulator;
  using Vec = typename Lanes<P>::Vec;
  const A grad_scale = static_cast<A>(scale);
  const A gradient_decay = static_cast<A>(factors.gradient_decay);
  const A buffer_decay = static_cast<A>(factors.buffer_decay);
  const A buffer_grad = static_cast<A>(factors.buffer_grad);
  const A update_buffer = static_cast<A>(factors.update_buffer);
  const A update_grad = static_cast<A>(factors.update_grad);
  const A parameter_decay = static_cast<A>(factors.parameter_decay);
  const A step_size = static_cast<A>(factors.step_size);
  for (std::int64_t i = begin; i < end; i += Lanes<P>::kWidth) {
    const std::int64_t count = std::min(Lanes<P>::kWidth, end - i);
    Vec p, g;
    load(arrays.parameter + i, count, p);
    load(arrays.grad + i, count, g);
    g *= grad_scale;
    if (gradient_decay != 0) g += gradient_decay * p;
    Vec update = update_grad * g;
    if (arrays.buffer != nullptr) {
      Vec buffer;
      load(arrays.buffer + i, count, buffer);
      update += update_buffer * buffer;
      store<A>(buffer_decay * buffer + buffer_grad * g, count, arrays.buffer + i);
    }
    if (factors.takes_sign) {
      const Vec one = Vec{} + A{1};
      const Vec sign = update > 0 ? one : (update < 0 ? -one : Vec{});
      update = update != update ? update : sign;
    }
    store<P>(parameter_decay * p - step_size * update, count, arrays.parameter + i);
  }
}

template <class P, class G>
bool are(const MomentumTensors& tensors) {
  return tensors.parameter.scalar_type() == c10::CppTypeToScalarType<P>::value &&
         tensors.grad.scalar_type() == c10::CppTypeToScalarType<G>::value;
}

template <class P, class G>
void update(const MomentumTensors& tensors, const MomentumFactors& factors, double scale) {
  using A = typename Lanes<P>::Accumulator;
  const Arrays<P, G> arrays{.parameter = tensors.parameter.mutable_data_ptr<P>(),
                            .grad = tensors.grad.const_data_ptr<G>(),
                            .buffer = tensors.buffer.defined() ? tensors.buffer.mutable_data_ptr<A>() : nullptr};
  at::parallel_for(0, tensors.parameter.numel(), kElementsPerTask,
                   [&](std::int64_t begin, std::int64_t end) { update_range(arrays, factors, scale, begin, end); });
}

}  // namespace

bool has_momentum_loop(const MomentumTensors& tensors) {
  const bool is_contiguous = tensors.parameter.is_contiguous() && tensors.grad.is_contiguous() &&
                             (!tensors.buffer.defined() || tensors.buffer.is_contiguous());
  return tensors.parameter.is_cpu() && is_contiguous &&
         (are<double, double>(tensors) || are<float, float>(tensors) || are<float, c10::BFloat16>(tensors) ||
          are<c10::BFloat16, float>(tensors) || are<c10::BFloat16, c10::BFloat16>(tensors));
}

void momentum_cpu(const MomentumTensors& tensors, const MomentumFactors& factors, double grad_scale) {
  const double scale = factors.maximize ? -grad_scale : grad_scale;
  if (are<double, double>(tensors)) update<double, double>(tensors, factors, scale);
  if (are<float, float>(tensors)) update<float, float>(tensors, factors, scale);
  if (are<float, c10::BFloat16>(tensors)) update<float, c10::BFloat16>(tensors, factors, scale);
  if (are<c10::BFloat16, float>(tensors)) update<c10::BFloat16, float>(tensors, factors, scale);
  if (are<c10::BFloat16, c10::BFloat16>(tensors)) update<c10::BFloat16, c10::BFloat16>(tensors, factors, scale);
  for (const at::Tensor& written : {tensors.parameter, tensors.buffer})
    if (written.defined()) written.unsafeGetTensorImpl()->bump_version();
}

}  // namespace d9d::kernels::detail
