#include "d9d/base/check.h"
#include "d9d/kernels/grouped_mm/grouped_gemm_kernel.h"

namespace d9d::kernels::detail {
namespace {

[[noreturn]] void refuse() {
  throw ConfigError("[kernels::grouped_mm] expected a build with CUDA, got one without. Build where nvcc is on PATH.");
}

}  // namespace

void launch_grouped_gemm(const GroupedGemmArgs&, CUstream_st*) { refuse(); }
void launch_grouped_gemm_wgrad(const GroupedGemmWgradArgs&, CUstream_st*) { refuse(); }

}  // namespace d9d::kernels::detail
