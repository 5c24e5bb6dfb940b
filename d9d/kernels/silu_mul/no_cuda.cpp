#include "d9d/base/check.h"
#include "d9d/kernels/silu_mul/silu_mul_kernel.h"

namespace d9d::kernels::detail {

void launch_silu_mul_forward(const SiluMulForwardArgs& /*args*/, CUstream_st* /*stream*/) {
  throw ConfigError("[kernels::silu_mul] expected a build with CUDA. Build with nvcc on PATH.");
}

void launch_silu_mul_backward(const SiluMulBackwardArgs& /*args*/, CUstream_st* /*stream*/) {
  throw ConfigError("[kernels::silu_mul] expected a build with CUDA. Build with nvcc on PATH.");
}

}  // namespace d9d::kernels::detail
