#include "d9d/kernels/common/refuse_without_cuda.h"
#include "d9d/kernels/grouped_mm/grouped_gemm_kernel.h"

namespace d9d::kernels::detail {
void launch_grouped_gemm(const GroupedGemmArgs&, CUstream_st*) { refuse_without_cuda("grouped_mm"); }
void launch_grouped_gemm_wgrad(const GroupedGemmWgradArgs&, CUstream_st*) { refuse_without_cuda("grouped_mm"); }

}  // namespace d9d::kernels::detail
