#include "d9d/kernels/moe_permute/token_permutation.h"

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/kernels/common/cuda_kernels.h"
#include "d9d/kernels/moe_permute/token_permutation_kernel.h"

namespace d9d::kernels {

TokenPermutation build_token_permutation(const TokenPermutationRequest& request) {
  const auto& ids = request.expert_ids;
  D9D_CHECK(ids.dim() == 2 && ids.scalar_type() == at::kLong, ConfigError,
            "[kernels::build_token_permutation] expected int64 expert ids of shape [tokens, experts a token], got ",
            ids.sizes(), " ", ids.scalar_type(), ". Pass the router's indices.");
  D9D_CHECK(request.num_experts > 0, ConfigError,
            "[kernels::build_token_permutation] expected at least one expert, got ", request.num_experts,
            ". Pass the number of experts that live here.");
  if (ids.is_cpu()) return detail::build_token_permutation_cpu(request);
  const bool has_kernel = detail::has_cuda_kernels(ids.device()) && request.num_experts <= detail::kMaxSortExperts;
  return has_kernel ? detail::build_token_permutation_cuda(request) : detail::build_token_permutation_aten(request);
}

namespace detail {

TokenPermutation build_token_permutation_aten(const TokenPermutationRequest& request) {
  const auto ids = request.expert_ids.flatten();
  const auto num_rows = request.num_rows ? *request.num_rows : ids.ge(0).sum().item<std::int64_t>();
  const auto num_elsewhere = ids.numel() - num_rows;  // slots with id -1, which sort to the front
  const auto [sorted_ids, slots] = at::sort(ids, /*stable=*/true, /*dim=*/0, /*descending=*/false);
  const auto experts = at::arange(request.num_experts + 1, ids.options());
  const auto offsets = at::searchsorted(sorted_ids, experts, /*out_int32=*/true) - num_elsewhere;
  const auto row_to_slot = slots.narrow(0, num_elsewhere, num_rows).contiguous();
  auto slot_to_row = at::full_like(ids, -1);
  slot_to_row.index_copy_(0, row_to_slot, at::arange(num_rows, ids.options()));
  const auto experts_a_token = std::max<std::int64_t>(request.expert_ids.size(1), 1);
  return {.row_to_slot = row_to_slot,
          .row_to_token = at::div(row_to_slot, experts_a_token, "floor"),
          .slot_to_row = slot_to_row.view(request.expert_ids.sizes()),
          .groups = ExpertTokenGroups(offsets)};
}

}  // namespace detail
}  // namespace d9d::kernels
