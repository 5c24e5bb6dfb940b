#include "d9d/kernels/common/refuse_without_cuda.h"
#include "d9d/kernels/silu_mul/silu_mul_kernel.h"

namespace d9d::kernels::detail {

void launch_silu_mul_forward(const SiluMulForwardArgs& /*args*/, CUstream_st* /*stream*/) {
  refuse_without_cuda("silu_mul");
}

void launch_silu_mul_backward(const SiluMulBackwardArgs& /*args*/, CUstream_st* /*stream*/) {
  refuse_without_cuda("silu_mul");
}

void launch_weighted_silu_mul_forward(const WeightedSiluMulForwardArgs& /*args*/, CUstream_st* /*stream*/) {
  refuse_without_cuda("weighted_silu_mul");
}

void launch_weighted_silu_mul_backward(const WeightedSiluMulBackwardArgs& /*args*/, CUstream_st* /*stream*/) {
  refuse_without_cuda("weighted_silu_mul");
}

}  // namespace d9d::kernels::detail
