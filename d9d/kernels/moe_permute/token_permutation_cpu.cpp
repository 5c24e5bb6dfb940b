#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/kernels/moe_permute/token_permutation.h"

namespace d9d::kernels::detail {
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

}  // namespace d9d::kernels::detail
