#include "d9d/loop/graphs/warm_up.h"

#include <exception>

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/autograd.h>

#include "d9d/base/interrupt.h"
#include "d9d/kernels/linear/linear.h"
#include "d9d/kernels/silu_mul/silu_mul.h"

namespace d9d {
namespace {

void multiply(c10::Device device) {
  constexpr std::int64_t kSize = 128;
  const c10::DeviceGuard guard(device);
  const at::TensorOptions options = at::device(device).dtype(at::kBFloat16);
  const at::Tensor x = at::zeros({kSize, kSize}, options).requires_grad_();
  const at::Tensor weight = at::zeros({kSize, kSize}, options).requires_grad_();
  const at::Tensor y = kernels::linear(x, weight);
  // The backward of silu_mul runs before that of the matrix product: LibTorch warns of a missing CUDA context if the
  // first call of a thread is a matrix product.
  const at::Tensor out = kernels::silu_mul(y, y);
  (void)torch::autograd::grad({out}, {x, weight}, {at::zeros_like(out)});
}

}  // namespace

std::jthread start_warm_up(c10::Device device) {
  if (!device.is_cuda()) return {};
  install_interrupt_handlers();  // must precede any thread that may compile kernels
  return std::jthread([device] {
    try {
      multiply(device);
    } catch (const std::exception&) {  // the first step meets the same error
    }
  });
}

}  // namespace d9d
