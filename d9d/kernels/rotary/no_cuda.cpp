#include "d9d/kernels/common/refuse_without_cuda.h"
#include "d9d/kernels/rotary/rotary_kernel.h"

namespace d9d::kernels::detail {

void launch_rotary(const RotaryArgs& /*args*/, CUstream_st* /*stream*/) { refuse_without_cuda("apply_rotary"); }

void launch_rotary_vectorized(const RotaryVectorizedArgs& /*args*/, CUstream_st* /*stream*/) {
  refuse_without_cuda("apply_rotary");
}

}  // namespace d9d::kernels::detail
