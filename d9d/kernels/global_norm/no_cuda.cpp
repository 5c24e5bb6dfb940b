#include "d9d/base/check.h"
#include "d9d/kernels/global_norm/global_norm_kernel.h"

namespace d9d::kernels::detail {

[[noreturn]] static void refuse() {
  throw ConfigError(
      "[kernels::global_norm] expected a build with nvcc, got one without. Configure with -DD9D_CUDA=ON.");
}

void launch_power_sums(Dtype /*dtype*/, NormOrder /*order*/, const PowerSumArgs& /*args*/, CUstream_st* /*stream*/) {
  refuse();
}

void launch_norm_of_power_sums(NormOrder /*order*/, const double* /*partial*/, std::int64_t /*num_partial*/,
                               double* /*norm*/, CUstream_st* /*stream*/) {
  refuse();
}

}  // namespace d9d::kernels::detail
