#include "d9d/base/check.h"
#include "d9d/kernels/weighted_silu_mul/weighted_silu_mul_kernel.h"

namespace d9d::kernels::detail {
namespace {

[[noreturn]] void refuse() {
  throw ConfigError(
      "[kernels::weighted_silu_mul] expected a build with CUDA, got one without. Build where nvcc is on PATH.");
}

}  // namespace

void launch_weighted_silu_mul_forward(const WeightedSiluMulForwardArgs&, CUstream_st*) { refuse(); }
void launch_weighted_silu_mul_backward(const WeightedSiluMulBackwardArgs&, CUstream_st*) { refuse(); }

}  // namespace d9d::kernels::detail
