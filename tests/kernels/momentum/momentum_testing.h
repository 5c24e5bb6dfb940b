// Shared by the tests of momentum_: the tensors of one step, with numbers determined by shape and seed.
#pragma once

#include <optional>
#include <vector>

#include <ATen/ATen.h>

#include "d9d/kernels/momentum/momentum.h"

#include "tests/kernels/op_testing.h"

namespace d9d::testing {

struct MomentumDtypes {
  at::ScalarType parameter;
  at::ScalarType grad;
  std::optional<at::ScalarType> buffer;  // none: no buffer
};

// Those of SGD with momentum, dampening and weight decay, and of Lion.
inline const kernels::MomentumFactors kSgdFactors{.gradient_decay = 0.1,
                                                  .buffer_decay = 0.9,
                                                  .buffer_grad = 0.7,
                                                  .update_buffer = 0.9,
                                                  .update_grad = 0.7,
                                                  .step_size = 1e-2,
                                                  .maximize = true};
inline const kernels::MomentumFactors kLionFactors{.buffer_decay = 0.99,
                                                   .buffer_grad = 0.01,
                                                   .update_buffer = 0.9,
                                                   .update_grad = 0.1,
                                                   .parameter_decay = 0.999,
                                                   .step_size = 1e-2,
                                                   .takes_sign = true};

// Contiguous, on the CPU.
[[nodiscard]] inline kernels::MomentumTensors momentum_tensors(at::IntArrayRef shape, const MomentumDtypes& dtypes,
                                                               std::uint64_t seed) {
  kernels::MomentumTensors tensors{
      .parameter = values(shape, seed, dtypes.parameter), .grad = values(shape, seed + 1, dtypes.grad), .buffer = {}};
  if (dtypes.buffer) tensors.buffer = values(shape, seed + 2).to(*dtypes.buffer);
  return tensors;
}

// Copies in which every tensor is passed through `convert`.
template <class Convert>
[[nodiscard]] kernels::MomentumTensors converted(const kernels::MomentumTensors& tensors, const Convert& convert) {
  kernels::MomentumTensors result = tensors;
  for (at::Tensor* each : {&result.parameter, &result.grad, &result.buffer})
    if (each->defined()) *each = convert(*each);
  return result;
}
[[nodiscard]] inline kernels::MomentumTensors cloned(const kernels::MomentumTensors& tensors) {
  return converted(tensors, [](const at::Tensor& tensor) { return tensor.clone(); });
}

}  // namespace d9d::testing
