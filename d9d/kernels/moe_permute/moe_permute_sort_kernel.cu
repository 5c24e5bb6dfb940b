// Formula: row of a slot = number of slots with a smaller expert + number of earlier slots with the same expert.
// Legend:  a slot is a choice of a token; slots whose expert is on another rank get no row.
// Mapping: a stable counting sort in two kernels. count_slots: a block counts the experts of 1,024 slots. place_slots:
//          a block adds up the counts of the blocks before it, and each of its warps places 128 consecutive slots, 32
//          at a time.
// Numerics: integers; the order of atomic additions does not matter.
// Traffic: expert ids are read twice, indices are written once; the counts of all blocks are read by each block.
#include <algorithm>

#include "d9d/kernels/device/launch.cuh"
#include "d9d/kernels/device/vector.cuh"
#include "d9d/kernels/moe_permute/moe_permute_kernel.h"

namespace d9d::kernels::detail {
namespace {

constexpr int kWarps = 8;
constexpr int kBlock = kWarps * kWarpSize;
constexpr int kSlotsOfWarp = kSlotsOfSortBlock / kWarps;
constexpr int kSlotsOfLane = kSlotsOfWarp / kWarpSize;

// The expert of a slot, or -1 if the slot gets no row.
__device__ __forceinline__ int expert_of(const TokenPermutationArgs& args, std::int64_t slot) {
  if (slot >= args.num_slots) return -1;
  const std::int64_t id = args.expert_ids[slot];
  return id >= 0 && id < args.num_experts ? static_cast<int>(id) : -1;
}

__global__ void __launch_bounds__(kBlock) count_slots(const TokenPermutationArgs args) {
  pdl_wait_and_trigger();
  extern __shared__ int count[];  // [num_experts]
  for (int expert = threadIdx.x; expert < args.num_experts; expert += kBlock) count[expert] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < kSlotsOfSortBlock; i += kBlock) {
    const int expert = expert_of(args, blockIdx.x * kSlotsOfSortBlock + i);
    if (expert >= 0) atomicAdd(count + expert, 1);
  }
  __syncthreads();
  std::int32_t* const counts = args.counts + static_cast<std::int64_t>(blockIdx.x) * args.num_experts;
  for (int expert = threadIdx.x; expert < args.num_experts; expert += kBlock) counts[expert] = count[expert];
}

// Computes for each expert the rows of all blocks, and those of the blocks before this one. The sums are integers, so
// their order does not matter.
__device__ __forceinline__ void sum_counts(const TokenPermutationArgs& args, int num_sort_blocks, int* of_all,
                                           int* of_blocks_before) {
  for (int expert = threadIdx.x; expert < args.num_experts; expert += kBlock)
    of_all[expert] = of_blocks_before[expert] = 0;
  __syncthreads();
  const int parts = max(1, kBlock / args.num_experts);  // threads per expert
  for (int i = threadIdx.x; i < parts * args.num_experts; i += kBlock) {
    const int expert = i % args.num_experts;
    int all = 0;
    int before = 0;
#pragma unroll 8
    for (int block = i / args.num_experts; block < num_sort_blocks; block += parts) {
      const int count = args.counts[static_cast<std::int64_t>(block) * args.num_experts + expert];
      all += count;
      if (block < static_cast<int>(blockIdx.x)) before += count;
    }
    atomicAdd(of_all + expert, all);
    atomicAdd(of_blocks_before + expert, before);
  }
  __syncthreads();
}

// Replaces the sizes of experts by the first row of each (an exclusive prefix sum). One warp calls it.
__device__ __forceinline__ void sizes_to_offsets(int* sizes, int num_experts) {
  const int lane = threadIdx.x % kWarpSize;
  int begin = 0;
  for (int first = 0; first < num_experts; first += kWarpSize) {
    const int expert = first + lane;
    const int size = expert < num_experts ? sizes[expert] : 0;
    int end = size;
#pragma unroll
    for (int offset = 1; offset < kWarpSize; offset *= 2) {
      const int before = __shfl_up_sync(kFullWarp, end, offset);
      if (lane >= offset) end += before;
    }
    if (expert < num_experts) sizes[expert] = begin + end - size;
    begin += __shfl_sync(kFullWarp, end, kWarpSize - 1);
  }
}

// A warp places consecutive slots, 32 at a time, so that the rows of an expert follow the order of slots.
__global__ void __launch_bounds__(kBlock) place_slots(const TokenPermutationArgs args, int num_sort_blocks) {
  pdl_wait_and_trigger();
  extern __shared__ int next_row[];  // [kWarps, num_experts]
  int* const offsets = next_row + kWarps * args.num_experts;
  int* const of_blocks_before = offsets + args.num_experts;
  const int lane = threadIdx.x % kWarpSize;
  const int warp = threadIdx.x / kWarpSize;
  const std::int64_t first = blockIdx.x * kSlotsOfSortBlock + warp * kSlotsOfWarp;
  int* const next_row_of_warp = next_row + warp * args.num_experts;
  int expert[kSlotsOfLane];
#pragma unroll
  for (int i = 0; i < kSlotsOfLane; ++i) expert[i] = expert_of(args, first + i * kWarpSize + lane);
  for (int i = threadIdx.x; i < kWarps * args.num_experts; i += kBlock) next_row[i] = 0;
  sum_counts(args, num_sort_blocks, offsets, of_blocks_before);
#pragma unroll
  for (int i = 0; i < kSlotsOfLane; ++i)
    if (expert[i] >= 0) atomicAdd(next_row_of_warp + expert[i], 1);
  const int rows_of_last = offsets[args.num_experts - 1];
  __syncthreads();
  if (warp == 0) sizes_to_offsets(offsets, args.num_experts);
  __syncthreads();
  for (int i = threadIdx.x; i < args.num_experts; i += kBlock) {
    if (blockIdx.x == 0) args.offsets[i] = offsets[i];
    int row = offsets[i] + of_blocks_before[i];
    for (int j = 0; j < kWarps; ++j) {
      const int of_warp = next_row[j * args.num_experts + i];
      next_row[j * args.num_experts + i] = row;
      row += of_warp;
    }
  }
  if (blockIdx.x == 0 && threadIdx.x == 0)
    args.offsets[args.num_experts] = offsets[args.num_experts - 1] + rows_of_last;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kSlotsOfLane; ++i) {
    const std::int64_t slot = first + i * kWarpSize + lane;
    const unsigned same = __match_any_sync(kFullWarp, expert[i]);
    const int before = __popc(same & ((1U << lane) - 1));
    const std::int64_t row = expert[i] >= 0 ? next_row_of_warp[expert[i]] + before : -1;
    __syncwarp();
    if (expert[i] >= 0 && before == 0) next_row_of_warp[expert[i]] += __popc(same);
    __syncwarp();
    if (slot < args.num_slots) args.slot_to_row[slot] = row;
    if (row < 0 || row >= args.num_rows) continue;  // row >= num_rows only if the caller's num_rows is wrong
    args.row_to_slot[row] = slot;
    args.row_to_token[row] = slot / args.slots_of_token;
  }
}

}  // namespace

void d9d_launch_token_permutation(const TokenPermutationArgs& args, CUstream_st* stream) {
  const unsigned grid = num_blocks(args.num_slots, kSlotsOfSortBlock);
  const auto bytes = static_cast<unsigned>(args.num_experts * sizeof(int));
  if (grid > 0) launch_pdl(count_slots, {.num_blocks = grid, .block = kBlock, .shared_bytes = bytes}, stream, args);
  launch_pdl(place_slots, {.num_blocks = std::max(grid, 1U), .block = kBlock, .shared_bytes = bytes * (kWarps + 2)},
             stream, args, static_cast<int>(grid));
  check_launch("build_token_permutation");
}

}  // namespace d9d::kernels::detail
