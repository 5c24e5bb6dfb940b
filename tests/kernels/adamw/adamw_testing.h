// Shared by the tests of adamw_: the tensors of one step, with numbers determined by shape and seed.
#pragma once

#include <vector>

#include <ATen/ATen.h>

#include "d9d/kernels/adamw/adamw.h"

#include "tests/kernels/op_testing.h"

namespace d9d::testing {

struct AdamWDtypes {
  at::ScalarType parameter;
  at::ScalarType grad;
  at::ScalarType moments;
  bool rounds = false;
};

inline const kernels::AdamWOptions kAdamWOptions{
    .learning_rate = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};

// The same with the decay in the gradient.
inline const kernels::AdamWOptions kAdamOptions = [] {
  kernels::AdamWOptions options = kAdamWOptions;
  options.decouples_decay = false;
  return options;
}();

// Contiguous, on the CPU, at step 5; if rounding is on, its key is `seed`.
[[nodiscard]] inline kernels::AdamWTensors adamw_tensors(at::IntArrayRef shape, const AdamWDtypes& dtypes,
                                                         std::uint64_t seed) {
  kernels::AdamWTensors tensors{.parameter = values(shape, seed, dtypes.parameter),
                                .grad = values(shape, seed + 1, dtypes.grad),
                                .exp_avg = (values(shape, seed + 2) * 0.1).to(dtypes.moments),
                                .exp_avg_sq = values(shape, seed + 3).square().mul(0.1).to(dtypes.moments),
                                .step = 5};
  if (dtypes.rounds) tensors.rounding = kernels::StochasticRounding{.key = seed};
  return tensors;
}

// Copies in which every tensor is passed through `convert`.
template <class Convert>
[[nodiscard]] kernels::AdamWTensors converted(const kernels::AdamWTensors& tensors, const Convert& convert) {
  kernels::AdamWTensors result = tensors;
  for (at::Tensor* each :
       {&result.parameter, &result.grad, &result.exp_avg, &result.exp_avg_sq, &result.max_exp_avg_sq})
    if (each->defined()) *each = convert(*each);
  return result;
}
[[nodiscard]] inline kernels::AdamWTensors cloned(const kernels::AdamWTensors& tensors) {
  return converted(tensors, [](const at::Tensor& tensor) { return tensor.clone(); });
}

}  // namespace d9d::testing
