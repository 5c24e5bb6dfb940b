#include "d9d/kernels/common/refuse_without_cuda.h"
#include "d9d/kernels/stochastic/copy_stochastic_kernel.h"

namespace d9d::kernels::detail {

void launch_copy_stochastic(const StochasticCopyArgs& /*args*/, CUstream_st* /*stream*/) {
  refuse_without_cuda("copy_stochastic");
}

}  // namespace d9d::kernels::detail
