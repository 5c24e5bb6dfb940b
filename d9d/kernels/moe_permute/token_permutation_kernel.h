// A stable counting sort of expert ids on a GPU.
#pragma once

#include <cstdint>

struct CUstream_st;

namespace d9d::kernels::detail {

inline constexpr std::int64_t kSlotsOfSortBlock = 1024;
inline constexpr std::int64_t kMaxSortExperts = 1024;

struct TokenPermutationArgs {
  const std::int64_t* expert_ids;  // [num_slots]; slots with ids outside [0, num_experts) get no row
  std::int64_t num_slots;          // below 2^31
  std::int64_t slots_of_token;
  std::int64_t num_rows;       // number of ids in [0, num_experts)
  int num_experts;             // at most kMaxSortExperts
  std::int32_t* counts;        // [ceil(num_slots / kSlotsOfSortBlock), num_experts]: scratch
  std::int32_t* offsets;       // [num_experts + 1]
  std::int64_t* row_to_slot;   // [num_rows]
  std::int64_t* row_to_token;  // [num_rows]
  std::int64_t* slot_to_row;   // [num_slots]
};
void launch_token_permutation(const TokenPermutationArgs& args, CUstream_st* stream);

}  // namespace d9d::kernels::detail
