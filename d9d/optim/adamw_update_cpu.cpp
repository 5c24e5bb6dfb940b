#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "d9d/base/check.h"
#include "d9d/kernels/simd.h"
#include "d9d/optim/adamw_update.h"

namespace d9d::detail {
namespace {

using kernels::detail::Lanes;
using kernels::detail::load;
using kernels::detail::store;

constexpr std::int64_t kElementsPerTask = 32768;

// Arrays of one parameter; max_exp_avg_sq is null without amsgrad.
template <class P, class G>
struct Arrays {
  using A = typename Lanes<P>::Accumulator;
  P* parameter;
  const G* grad;
  A* exp_avg;
  A* exp_avg_sq;
  A* max_exp_avg_sq;
};

template <class P, class G>
D9D_SIMD_CLONES void update_range(const Arrays<P, G>& arrays, const AdamWFactors& factors, double scale,
                                  std::int64_t begin, std::int64_t end) {
  using A = typename Lanes<P>::Accumulator;
  using Vec = typename Lanes<P>::Vec;
  const A decay = static_cast<A>(factors.parameter_decay);
  const A weight1 = static_cast<A>(1 - factors.beta1);
  const A beta2 = static_cast<A>(factors.beta2);
  const A weight2 = static_cast<A>(1 - factors.beta2);
  const A step_size = static_cast<A>(factors.step_size);
  const A correction = static_cast<A>(factors.bias_correction2_sqrt);
  const A eps = static_cast<A>(factors.eps);
  const A grad_scale = static_cast<A>(scale);
  for (std::int64_t i = begin; i < end; i += Lanes<P>::kWidth) {
    const std::int64_t count = std::min(Lanes<P>::kWidth, end - i);
    Vec p, g, m, v;
    load(arrays.parameter + i, count, p);
    load(arrays.grad + i, count, g);
    load(arrays.exp_avg + i, count, m);
    load(arrays.exp_avg_sq + i, count, v);
    g *= grad_scale;
    m += weight1 * (g - m);
    v = beta2 * v + weight2 * g * g;
    store<A>(m, count, arrays.exp_avg + i);
    store<A>(v, count, arrays.exp_avg_sq + i);
    if (arrays.max_exp_avg_sq != nullptr) {
      Vec largest;
      load(arrays.max_exp_avg_sq + i, count, largest);
      v = largest > v ? largest : v;
      store<A>(v, count, arrays.max_exp_avg_sq + i);
    }
    for (std::int64_t lane = 0; lane < Lanes<P>::kWidth; ++lane) v[lane] = std::sqrt(v[lane]);
    store<P>(p * decay - step_size * m / (v / correction + eps), count, arrays.parameter + i);
  }
}

template <class P, class G>
bool are(const AdamWTensors& tensors) {
  return tensors.parameter.scalar_type() == c10::CppTypeToScalarType<P>::value &&
         tensors.grad.scalar_type() == c10::CppTypeToScalarType<G>::value;
}

template <class P, class G>
void update(const AdamWTensors& tensors, const AdamWFactors& factors, double grad_scale) {
  using A = typename Lanes<P>::Accumulator;
  const Arrays<P, G> arrays{
      .parameter = tensors.parameter.mutable_data_ptr<P>(),
      .grad = tensors.grad.const_data_ptr<G>(),
      .exp_avg = tensors.exp_avg.mutable_data_ptr<A>(),
      .exp_avg_sq = tensors.exp_avg_sq.mutable_data_ptr<A>(),
      .max_exp_avg_sq = tensors.max_exp_avg_sq.defined() ? tensors.max_exp_avg_sq.mutable_data_ptr<A>() : nullptr};
  at::parallel_for(0, tensors.parameter.numel(), kElementsPerTask, [&](std::int64_t begin, std::int64_t end) {
    update_range(arrays, factors, grad_scale, begin, end);
  });
}

}  // namespace

bool has_adamw_loop(const AdamWTensors& tensors) {
  return tensors.parameter.is_cpu() && tensors.parameter.is_contiguous() && tensors.grad.is_contiguous() &&
         (are<double, double>(tensors) || are<float, float>(tensors) || are<c10::BFloat16, float>(tensors) ||
          are<c10::BFloat16, c10::BFloat16>(tensors));
}

void adamw_update_cpu(const AdamWTensors& tensors, const AdamWFactors& factors, double grad_scale) {
  if (are<double, double>(tensors)) return update<double, double>(tensors, factors, grad_scale);
  if (are<float, float>(tensors)) return update<float, float>(tensors, factors, grad_scale);
  if (are<c10::BFloat16, float>(tensors)) return update<c10::BFloat16, float>(tensors, factors, grad_scale);
  if (are<c10::BFloat16, c10::BFloat16>(tensors))
    return update<c10::BFloat16, c10::BFloat16>(tensors, factors, grad_scale);
  D9D_ASSERT(false, "no AdamW loop for these dtypes");
}

}  // namespace d9d::detail
