#include "d9d/loop/component/warm_up.h"

#include <exception>

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/autograd.h>

#include "d9d/kernels/attention/scaled_dot_product_attention.h"
#include "d9d/kernels/linear/linear.h"

namespace d9d {
namespace {

void use_libraries(c10::Device device) {
  constexpr std::int64_t kTokens = 128, kHeadDim = 128;
  const c10::DeviceGuard guard(device);
  const at::TensorOptions options = at::device(device).dtype(at::kBFloat16);
  const at::Tensor x = at::zeros({kTokens, kHeadDim}, options).requires_grad_();
  const at::Tensor weight = at::zeros({kHeadDim, kHeadDim}, options).requires_grad_();
  const at::Tensor heads = kernels::linear(x, weight).view({1, kTokens, 1, kHeadDim});
  const at::Tensor out =
      kernels::scaled_dot_product_attention({.query = heads, .key = heads, .value = heads}, {.causal = true});
  (void)torch::autograd::grad({out}, {x, weight}, {at::zeros_like(out)});
}

}  // namespace

std::jthread start_warm_up(c10::Device device) {
  if (!device.is_cuda()) return {};
  return std::jthread([device] {
    try {
      use_libraries(device);
    } catch (const std::exception&) {  // the step that needs it will say so
    }
  });
}

}  // namespace d9d
