#include "d9d/base/check.h"
#include "d9d/kernels/stochastic/copy_stochastic_kernel.h"

namespace d9d::kernels::detail {

void launch_copy_stochastic(const StochasticCopyArgs& /*args*/, CUstream_st* /*stream*/) {
  throw ConfigError(
      "[kernels::copy_stochastic] expected a build with nvcc, got one without. Configure with -DD9D_CUDA=ON.");
}

}  // namespace d9d::kernels::detail
