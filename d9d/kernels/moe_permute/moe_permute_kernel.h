// The CUDA kernels of permute, unpermute, indices_to_multihot and build_token_permutation.
//
// Legend   N rows, T tokens, k choices, H features; tensors of N or T rows with H features have the dtype of the shape;
//          A = its accumulator: double for double, otherwise float. All tensors are contiguous.
#pragma once

#include <cstdint>

#include "d9d/base/dtype.h"
#include "d9d/core/device/cuda_function.h"

struct CUstream_st;

namespace d9d::kernels::detail {

struct MoePermuteShape {
  Dtype dtype;
  std::int64_t num_tokens;
  std::int64_t num_choices;
  std::int64_t num_features;        // at least 1
  const std::int64_t* slot_to_row;  // [T, k], negative: no row
};

// rows[slot_to_row[t, c]] = tokens[t], and row_values[slot_to_row[t, c]] = slot_values[t, c].
struct ScatterTokensArgs {
  MoePermuteShape shape;
  const void* tokens;       // [T, H]
  void* rows;               // [N, H]
  int value_size;           // bytes: 2, 4 or 8; 0: no values
  const void* slot_values;  // [T, k]
  void* row_values;         // [N]
};
extern "C" void d9d_launch_scatter_tokens(const ScatterTokensArgs& args, CUstream_st* stream);
inline constexpr CudaFunction<"d9d_launch_scatter_tokens", decltype(d9d_launch_scatter_tokens)> launch_scatter_tokens;

// tokens[t] = sum over c, in order, of slot_weights[t, c] * rows[slot_to_row[t, c]] in A, and
// slot_values[t, c] = row_values[slot_to_row[t, c]], 0 for a slot without a row.
struct CombineRowsArgs {
  MoePermuteShape shape;
  const void* rows;          // [N, H]
  const void* slot_weights;  // [T, k] A; null counts as all ones
  void* tokens;              // [T, H]
  int value_size;            // bytes: 2, 4 or 8; 0: no values
  const void* row_values;    // [N]
  void* slot_values;         // [T, k]
};
extern "C" void d9d_launch_combine_rows(const CombineRowsArgs& args, CUstream_st* stream);
inline constexpr CudaFunction<"d9d_launch_combine_rows", decltype(d9d_launch_combine_rows)> launch_combine_rows;

// The gradients of tokens[t] = sum over c of slot_weights[t, c] * rows[slot_to_row[t, c]].
struct CombineRowsBackwardArgs {
  MoePermuteShape shape;
  const void* rows;          // [N, H]; may be null if grad_weights is null
  const void* slot_weights;  // [T, k] A
  const void* grad_tokens;   // [T, H]
  void* grad_rows;           // [N, H], or null
  void* grad_weights;        // [T, k] A, or null
};
extern "C" void d9d_launch_combine_rows_backward(const CombineRowsBackwardArgs& args, CUstream_st* stream);
inline constexpr CudaFunction<"d9d_launch_combine_rows_backward", decltype(d9d_launch_combine_rows_backward)>
    launch_combine_rows_backward;

// mask[t, e] is true if some indices[t, c] is e; dense[t, e] is probs[t, c] of that c, or 0.
struct MultihotArgs {
  Dtype dtype;  // of probs and dense
  std::int64_t num_tokens;
  std::int64_t num_choices;
  std::int64_t num_experts;
  const std::int64_t* indices;  // [T, k]
  const void* probs;            // [T, k]
  bool* mask;                   // [T, E]
  void* dense;                  // [T, E]
};
extern "C" void d9d_launch_indices_to_multihot(const MultihotArgs& args, CUstream_st* stream);
inline constexpr CudaFunction<"d9d_launch_indices_to_multihot", decltype(d9d_launch_indices_to_multihot)>
    launch_indices_to_multihot;

// A stable counting sort of expert ids.
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
extern "C" void d9d_launch_token_permutation(const TokenPermutationArgs& args, CUstream_st* stream);
inline constexpr CudaFunction<"d9d_launch_token_permutation", decltype(d9d_launch_token_permutation)>
    launch_token_permutation;

}  // namespace d9d::kernels::detail
