#include "d9d/kernels/common/refuse_without_cuda.h"
#include "d9d/kernels/router/topk_router_kernel.h"

namespace d9d::kernels::detail {
void launch_topk_router_forward(const TopkRouterForwardArgs&, CUstream_st*) { refuse_without_cuda("router"); }
void launch_topk_router_backward(const TopkRouterBackwardArgs&, CUstream_st*) { refuse_without_cuda("router"); }
void launch_expert_count(const ExpertCountArgs&, CUstream_st*) { refuse_without_cuda("router"); }

}  // namespace d9d::kernels::detail
