#include "d9d/base/check.h"
#include "d9d/kernels/silu_mul_linear/silu_mul_linear_kernel.h"

namespace d9d::kernels::detail {

void launch_silu_mul_linear_backward(const SiluMulLinearBackwardArgs& /*args*/, CUstream_st* /*stream*/) {
  throw ConfigError("[kernels::silu_mul_linear] expected a build with CUDA. Build with nvcc on PATH.");
}

}  // namespace d9d::kernels::detail
