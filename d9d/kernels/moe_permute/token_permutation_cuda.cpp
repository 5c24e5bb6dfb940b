#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>

#include "d9d/base/rounding.h"
#include "d9d/core/device/cuda_stream.h"
#include "d9d/kernels/moe_permute/token_permutation.h"
#include "d9d/kernels/moe_permute/token_permutation_kernel.h"

namespace d9d::kernels::detail {

TokenPermutation build_token_permutation_cuda(const TokenPermutationRequest& request) {
  const c10::DeviceGuard guard(request.expert_ids.device());
  const at::Tensor ids = request.expert_ids.contiguous();
  const at::TensorOptions wide = ids.options();
  const at::TensorOptions narrow = wide.dtype(at::kInt);
  const std::int64_t num_rows = request.num_rows ? *request.num_rows : ids.ge(0).sum().item<std::int64_t>();
  const std::int64_t num_sort_blocks = divide_up(ids.numel(), kSlotsOfSortBlock);
  const at::Tensor counts = at::empty({num_sort_blocks, request.num_experts}, narrow);
  const at::Tensor offsets = at::empty({request.num_experts + 1}, narrow);
  TokenPermutation result{.row_to_slot = at::empty({num_rows}, wide),
                          .row_to_token = at::empty({num_rows}, wide),
                          .slot_to_row = at::empty(ids.sizes(), wide),
                          .groups = ExpertTokenGroups(offsets)};
  launch_token_permutation({.expert_ids = ids.const_data_ptr<std::int64_t>(),
                            .num_slots = ids.numel(),
                            .slots_of_token = ids.size(1),
                            .num_rows = num_rows,
                            .num_experts = static_cast<int>(request.num_experts),
                            .counts = counts.mutable_data_ptr<std::int32_t>(),
                            .offsets = offsets.mutable_data_ptr<std::int32_t>(),
                            .row_to_slot = result.row_to_slot.mutable_data_ptr<std::int64_t>(),
                            .row_to_token = result.row_to_token.mutable_data_ptr<std::int64_t>(),
                            .slot_to_row = result.slot_to_row.mutable_data_ptr<std::int64_t>()},
                           current_cuda_stream(ids.device()));
  return result;
}

}  // namespace d9d::kernels::detail
