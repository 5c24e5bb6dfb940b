#include "d9d/kernels/common/refuse_without_cuda.h"
#include "d9d/kernels/silu_mul_linear/silu_mul_linear_kernel.h"

namespace d9d::kernels::detail {

void launch_silu_mul_linear_backward(const SiluMulLinearBackwardArgs& /*args*/, CUstream_st* /*stream*/) {
  refuse_without_cuda("silu_mul_linear");
}

}  // namespace d9d::kernels::detail
