#include "d9d/base/check.h"
#include "d9d/kernels/norm_rotary/norm_rotary_kernel.h"

namespace d9d::kernels::detail {
namespace {

[[noreturn]] void refuse() {
  throw ConfigError("[kernels::norm_rotary] expected a build with CUDA. Build with nvcc on PATH.");
}

}  // namespace

void launch_norm_rotary_forward(const NormRotaryForwardArgs& /*args*/, CUstream_st* /*stream*/) { refuse(); }

void launch_norm_rotary_backward(const NormRotaryBackwardArgs& /*args*/, CUstream_st* /*stream*/) { refuse(); }

}  // namespace d9d::kernels::detail
