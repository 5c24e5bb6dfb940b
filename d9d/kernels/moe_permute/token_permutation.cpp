#include "d9d/kernels/moe_permute/token_permutation.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>

#include "d9d/base/check.h"
#include "d9d/base/rounding.h"
#include "d9d/core/device/cuda_stream.h"
#include "d9d/kernels/common/cuda_kernels.h"
#include "d9d/kernels/moe_permute/moe_permute_kernel.h"

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
namespace {

// The number of rows of each expert. Checks that every id is in range.
std::vector<std::int64_t> count_rows(const std::int64_t* ids, std::int64_t num_slots, std::int64_t num_experts) {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(num_experts));
  for (std::int64_t slot = 0; slot < num_slots; ++slot) {
    D9D_CHECK(ids[slot] >= -1 && ids[slot] < num_experts, ConfigError,
              "[kernels::build_token_permutation] expected expert ids below num_experts = ", num_experts,
              ", or -1, got ", ids[slot], ". Number the experts that live here from 0.");
    if (ids[slot] >= 0) ++counts[static_cast<std::size_t>(ids[slot])];
  }
  return counts;
}

}  // namespace

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

// A counting sort of the slots.
TokenPermutation build_token_permutation_cpu(const TokenPermutationRequest& request) {
  const auto ids = request.expert_ids.contiguous();
  const auto* id = ids.const_data_ptr<std::int64_t>();
  auto counts = count_rows(id, ids.numel(), request.num_experts);

  auto offsets = at::empty({request.num_experts + 1}, ids.options().dtype(at::kInt));
  auto* offset = offsets.mutable_data_ptr<std::int32_t>();
  std::vector<std::int64_t> next_row;
  std::int64_t num_rows = 0;
  *offset++ = 0;
  for (const auto count : counts) {
    next_row.push_back(num_rows);
    num_rows += count;
    *offset++ = static_cast<std::int32_t>(num_rows);
  }
  D9D_CHECK(!request.num_rows || *request.num_rows == num_rows, ConfigError,
            "[kernels::build_token_permutation] expected num_rows to be the number of ids that are not -1 = ", num_rows,
            ", got ", *request.num_rows, ". Leave it out or count again.");

  auto row_to_slot = at::empty({num_rows}, ids.options());
  auto row_to_token = at::empty({num_rows}, ids.options());
  auto slot_to_row = at::empty_like(ids);
  auto* slot_of = row_to_slot.mutable_data_ptr<std::int64_t>();
  auto* token_of = row_to_token.mutable_data_ptr<std::int64_t>();
  auto* row_of = slot_to_row.mutable_data_ptr<std::int64_t>();
  for (std::int64_t slot = 0; slot < ids.numel(); ++slot) {
    if (id[slot] < 0) {
      row_of[slot] = -1;
      continue;
    }
    const auto row = next_row[static_cast<std::size_t>(id[slot])]++;
    row_of[slot] = row;
    slot_of[row] = slot;
    token_of[row] = slot / ids.size(1);
  }
  return {.row_to_slot = std::move(row_to_slot),
          .row_to_token = std::move(row_to_token),
          .slot_to_row = std::move(slot_to_row),
          .groups = ExpertTokenGroups(std::move(offsets), std::move(counts))};
}

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

}  // namespace detail
}  // namespace d9d::kernels
