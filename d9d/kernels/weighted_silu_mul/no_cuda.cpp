#include "d9d/kernels/common/refuse_without_cuda.h"
#include "d9d/kernels/weighted_silu_mul/weighted_silu_mul_kernel.h"

namespace d9d::kernels::detail {
void launch_weighted_silu_mul_forward(const WeightedSiluMulForwardArgs&, CUstream_st*) {
  refuse_without_cuda("weighted_silu_mul");
}
void launch_weighted_silu_mul_backward(const WeightedSiluMulBackwardArgs&, CUstream_st*) {
  refuse_without_cuda("weighted_silu_mul");
}

}  // namespace d9d::kernels::detail
