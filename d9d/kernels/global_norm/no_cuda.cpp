#include "d9d/kernels/common/refuse_without_cuda.h"
#include "d9d/kernels/global_norm/global_norm_kernel.h"

namespace d9d::kernels::detail {

void launch_power_sums(Dtype /*dtype*/, NormOrder /*order*/, const PowerSumArgs& /*args*/, CUstream_st* /*stream*/) {
  refuse_without_cuda("global_norm");
}

void launch_norm_of_power_sums(NormOrder /*order*/, const double* /*partial*/, std::int64_t /*num_partial*/,
                               double* /*norm*/, CUstream_st* /*stream*/) {
  refuse_without_cuda("global_norm");
}

}  // namespace d9d::kernels::detail
