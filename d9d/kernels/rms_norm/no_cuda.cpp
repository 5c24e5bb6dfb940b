#include "d9d/kernels/common/refuse_without_cuda.h"
#include "d9d/kernels/rms_norm/rms_norm_kernel.h"

namespace d9d::kernels::detail {
void launch_rms_norm_forward(const RmsNormForwardArgs& /*args*/, CUstream_st* /*stream*/) {
  refuse_without_cuda("rms_norm");
}

void launch_rms_norm_backward(const RmsNormBackwardArgs& /*args*/, CUstream_st* /*stream*/) {
  refuse_without_cuda("rms_norm");
}

}  // namespace d9d::kernels::detail
