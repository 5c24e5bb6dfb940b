#include "d9d/base/check.h"
#include "d9d/kernels/router/topk_router_kernel.h"

namespace d9d::kernels::detail {
namespace {

[[noreturn]] void refuse() {
  throw ConfigError("[kernels::router] expected a build with CUDA, got one without. Build where nvcc is on PATH.");
}

}  // namespace

void launch_topk_router_forward(const TopkRouterForwardArgs&, CUstream_st*) { refuse(); }
void launch_topk_router_backward(const TopkRouterBackwardArgs&, CUstream_st*) { refuse(); }
void launch_expert_count(const ExpertCountArgs&, CUstream_st*) { refuse(); }

}  // namespace d9d::kernels::detail
