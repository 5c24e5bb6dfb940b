#include "d9d/base/check.h"
#include "d9d/kernels/attention/fused_kernels.h"

namespace d9d::kernels::detail {
namespace {

constexpr const char* kNeedsCuda = "[kernels::attention] expected a build with CUDA. Build with nvcc on PATH.";

}  // namespace

const char* cudnn_refusal(const FusedTensors& /*tensors*/, const FusedCall& /*call*/, bool /*has_sinks*/) {
  return "needs a build with CUDA";
}

FusedForward cudnn_forward(const FusedTensors& /*tensors*/, const at::Tensor& /*sinks*/, const FusedCall& /*call*/,
                           bool /*backward_follows*/) {
  throw ConfigError(kNeedsCuda);
}

FusedGradients cudnn_backward(const at::Tensor& /*grad_out*/, const FusedTensors& /*tensors*/,
                              const FusedForward& /*forward*/, const FusedCall& /*call*/) {
  throw ConfigError(kNeedsCuda);
}

}  // namespace d9d::kernels::detail
