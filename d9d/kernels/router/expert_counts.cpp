#include "d9d/kernels/router/expert_counts.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>

#include "d9d/base/check.h"
#include "d9d/core/device/cuda_stream.h"
#include "d9d/kernels/common/cuda_kernels.h"
#include "d9d/kernels/router/topk_router_kernel.h"

namespace d9d::kernels {
namespace {

constexpr std::int64_t kMaxExperts = 12288;  // their counts fit in a block's shared memory

}  // namespace

void add_expert_counts_(at::Tensor& counts, const at::Tensor& expert_ids) {
  D9D_CHECK(counts.dim() == 1 && counts.scalar_type() == at::kLong && expert_ids.scalar_type() == at::kLong,
            ConfigError, "[kernels::add_expert_counts_] expected int64 counts [experts] and int64 ids, got ",
            counts.sizes(), " ", counts.scalar_type(), " and ids in ", expert_ids.scalar_type(), ".");
  const c10::NoGradGuard no_grad;
  const at::Tensor ids = expert_ids.reshape({-1});
  if (!detail::has_cuda_kernels(ids.device()) || counts.size(0) > kMaxExperts || !counts.is_contiguous()) {
    counts.scatter_add_(0, ids, at::ones_like(ids));
    return;
  }
  const c10::DeviceGuard guard(ids.device());
  detail::launch_expert_count({.ids = ids.contiguous().const_data_ptr<std::int64_t>(),
                               .size = ids.numel(),
                               .num_experts = static_cast<int>(counts.size(0)),
                               .counts = counts.mutable_data_ptr<std::int64_t>()},
                              current_cuda_stream(ids.device()));
}

}  // namespace d9d::kernels
