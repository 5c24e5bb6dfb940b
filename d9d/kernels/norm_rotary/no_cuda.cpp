#include "d9d/kernels/common/refuse_without_cuda.h"
#include "d9d/kernels/norm_rotary/norm_rotary_kernel.h"

namespace d9d::kernels::detail {
void launch_norm_rotary_forward(const NormRotaryForwardArgs& /*args*/, CUstream_st* /*stream*/) {
  refuse_without_cuda("norm_rotary");
}

void launch_norm_rotary_backward(const NormRotaryBackwardArgs& /*args*/, CUstream_st* /*stream*/) {
  refuse_without_cuda("norm_rotary");
}

}  // namespace d9d::kernels::detail
