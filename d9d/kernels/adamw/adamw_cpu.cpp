#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "d9d/base/check.h"
#include "d9d/kernels/adamw/adamw_impl.h"
#include "d9d/kernels/common/cpu_loops.h"
#include "d9d/kernels/common/simd.h"
#include "d9d/kernels/stochastic/copy_stochastic_impl.h"

namespace d9d::kernels::detail {
namespace {

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
  const A gradient_decay = static_cast<A>(factors.gradient_decay);
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
    if (gradient_decay != 0) g += gradient_decay * p;
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

// Whether the parameter's elements are P and the gradient's G.
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

// A float copy of a part of a tensor, which is updated and then written back.
struct FloatBlock {
  static constexpr std::int64_t kSize = 1024;
  std::array<float, kSize> value;

  template <class T>
  void read(const T* from, std::int64_t size) {
    for (std::int64_t i = 0; i < size; ++i) value[static_cast<std::size_t>(i)] = static_cast<float>(from[i]);
  }
};

// Writes the block to `tensor` from element `begin` on. Random bits of `stream` round to a bfloat16 tensor.
void write(const FloatBlock& block, std::int64_t begin, std::int64_t size, RandomStream stream, const ElementRows& rows,
           const at::Tensor& tensor) {
  if (tensor.scalar_type() == at::kFloat) {
    std::copy_n(block.value.begin(), size, tensor.mutable_data_ptr<float>() + begin);
  } else {
    round_stochastically(block.value.data(), size, begin, stream, rows,
                         tensor.mutable_data_ptr<c10::BFloat16>() + begin);
  }
}

void read(const at::Tensor& tensor, std::int64_t begin, std::int64_t size, FloatBlock& block) {
  if (tensor.scalar_type() == at::kFloat) {
    block.read(tensor.const_data_ptr<float>() + begin, size);
  } else {
    block.read(tensor.const_data_ptr<c10::BFloat16>() + begin, size);
  }
}

template <class G>
void update_and_round(const AdamWTensors& tensors, const AdamWFactors& factors, double grad_scale) {
  const RandomStream stream = rounding_stream(tensors);
  const auto later = [&](std::uint64_t steps) { return RandomStream{.key = stream.key, .step = stream.step + steps}; };
  const ElementRows& rows = tensors.rounding->rows;
  const auto* grad = tensors.grad.const_data_ptr<G>();
  at::parallel_for(0, tensors.parameter.numel(), kElementsPerTask, [&](std::int64_t begin, std::int64_t end) {
    FloatBlock parameter, exp_avg, exp_avg_sq;
    for (std::int64_t i = begin; i < end; i += FloatBlock::kSize) {
      const std::int64_t size = std::min(FloatBlock::kSize, end - i);
      read(tensors.parameter, i, size, parameter);
      read(tensors.exp_avg, i, size, exp_avg);
      read(tensors.exp_avg_sq, i, size, exp_avg_sq);
      const Arrays<float, G> arrays{.parameter = parameter.value.data(),
                                    .grad = grad + i,
                                    .exp_avg = exp_avg.value.data(),
                                    .exp_avg_sq = exp_avg_sq.value.data(),
                                    .max_exp_avg_sq = nullptr};
      update_range(arrays, factors, grad_scale, 0, size);
      write(parameter, i, size, stream, rows, tensors.parameter);
      write(exp_avg, i, size, later(1), rows, tensors.exp_avg);
      write(exp_avg_sq, i, size, later(2), rows, tensors.exp_avg_sq);
    }
  });
}

bool is_contiguous(const AdamWTensors& tensors) {
  return tensors.parameter.is_contiguous() && tensors.grad.is_contiguous() && tensors.exp_avg.is_contiguous() &&
         tensors.exp_avg_sq.is_contiguous();
}

}  // namespace

bool has_adamw_loop(const AdamWTensors& tensors) {
  if (!tensors.parameter.is_cpu() || !is_contiguous(tensors)) return false;
  if (are<c10::BFloat16, float>(tensors) || are<c10::BFloat16, c10::BFloat16>(tensors))
    return !(tensors.rounding && tensors.max_exp_avg_sq.defined());
  return are<double, double>(tensors) || are<float, float>(tensors) || are<float, c10::BFloat16>(tensors);
}

void adamw_cpu(const AdamWTensors& tensors, const AdamWFactors& factors, double grad_scale) {
  const bool has_float_grad = tensors.grad.scalar_type() == at::kFloat;
  if (tensors.rounding) {
    (has_float_grad ? update_and_round<float> : update_and_round<c10::BFloat16>)(tensors, factors, grad_scale);
  } else if (tensors.parameter.scalar_type() == at::kBFloat16) {
    (has_float_grad ? update<c10::BFloat16, float> : update<c10::BFloat16, c10::BFloat16>)(tensors, factors,
                                                                                           grad_scale);
  } else if (tensors.parameter.scalar_type() == at::kFloat) {
    (has_float_grad ? update<float, float> : update<float, c10::BFloat16>)(tensors, factors, grad_scale);
  } else {
    update<double, double>(tensors, factors, grad_scale);
  }
  for (const at::Tensor& written : {tensors.parameter, tensors.exp_avg, tensors.exp_avg_sq})
    written.unsafeGetTensorImpl()->bump_version();
}

}  // namespace d9d::kernels::detail
