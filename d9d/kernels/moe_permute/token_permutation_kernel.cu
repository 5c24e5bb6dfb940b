#include "d9d/kernels/device/launch.cuh"
#include "d9d/kernels/device/vector.cuh"
#include "d9d/kernels/moe_permute/token_permutation_kernel.h"

namespace d9d::kernels::detail {
namespace {

constexpr int kWarps = 8;
constexpr int kBlock = kWarps * kWarpSize;
constexpr int kSlotsOfWarp = kSlotsOfSortBlock / kWarps;
constexpr int kScanBlock = kMaxSortExperts;  // a thread an expert

// -1 for a slot without a row.
__device__ __forceinline__ int expert_of(const TokenPermutationArgs& args, std::int64_t slot) {
  if (slot >= args.num_slots) return -1;
  const std::int64_t id = args.expert_ids[slot];
  return id >= 0 && id < args.num_experts ? static_cast<int>(id) : -1;
}

__global__ void __launch_bounds__(kBlock) count_slots(const TokenPermutationArgs args) {
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

// One block. Counts become the rows that blocks before have of the expert; offsets the rows of experts before.
__global__ void __launch_bounds__(kScanBlock) scan_counts(const TokenPermutationArgs args, int num_sort_blocks) {
  __shared__ int sums[kWarpSize];
  const int expert = threadIdx.x;
  int rows = 0;
  if (expert < args.num_experts) {
#pragma unroll 8
    for (int block = 0; block < num_sort_blocks; ++block) {
      std::int32_t* const count = args.counts + static_cast<std::int64_t>(block) * args.num_experts + expert;
      const int of_block = *count;
      *count = rows;
      rows += of_block;
    }
  }
  // An inclusive scan over lanes, then over warps.
  const int lane = threadIdx.x % kWarpSize;
  const int warp = threadIdx.x / kWarpSize;
  const auto scan_of_warp = [lane](int value) {
#pragma unroll
    for (int offset = 1; offset < kWarpSize; offset *= 2) {
      const int before = __shfl_up_sync(kFullWarp, value, offset);
      if (lane >= offset) value += before;
    }
    return value;
  };
  int end = scan_of_warp(rows);
  if (lane == kWarpSize - 1) sums[warp] = end;
  __syncthreads();
  if (warp == 0) sums[lane] = scan_of_warp(sums[lane]);
  __syncthreads();
  if (warp > 0) end += sums[warp - 1];
  if (expert < args.num_experts) args.offsets[expert + 1] = end;
  if (expert == 0) args.offsets[0] = 0;
}

// Warps have consecutive slots, and walk over them 32 at a time: rows follow the order of slots.
__global__ void __launch_bounds__(kBlock) place_slots(const TokenPermutationArgs args) {
  extern __shared__ int next_row[];  // [kWarps, num_experts]
  const int lane = threadIdx.x % kWarpSize;
  const int warp = threadIdx.x / kWarpSize;
  const std::int64_t first = blockIdx.x * kSlotsOfSortBlock + warp * kSlotsOfWarp;
  int* const next_row_of_warp = next_row + warp * args.num_experts;
  for (int i = threadIdx.x; i < kWarps * args.num_experts; i += kBlock) next_row[i] = 0;
  __syncthreads();
  for (int i = lane; i < kSlotsOfWarp; i += kWarpSize) {
    const int expert = expert_of(args, first + i);
    if (expert >= 0) atomicAdd(next_row_of_warp + expert, 1);
  }
  __syncthreads();
  const std::int32_t* const counts = args.counts + static_cast<std::int64_t>(blockIdx.x) * args.num_experts;
  for (int expert = threadIdx.x; expert < args.num_experts; expert += kBlock) {
    int row = args.offsets[expert] + counts[expert];
    for (int i = 0; i < kWarps; ++i) {
      const int of_warp = next_row[i * args.num_experts + expert];
      next_row[i * args.num_experts + expert] = row;
      row += of_warp;
    }
  }
  __syncthreads();
  for (int i = lane; i < kSlotsOfWarp; i += kWarpSize) {
    const std::int64_t slot = first + i;
    const int expert = expert_of(args, slot);
    const unsigned same = __match_any_sync(kFullWarp, expert);
    const int before = __popc(same & ((1U << lane) - 1));
    const std::int64_t row = expert >= 0 ? next_row_of_warp[expert] + before : -1;
    __syncwarp();
    if (expert >= 0 && before == 0) next_row_of_warp[expert] += __popc(same);
    __syncwarp();
    if (slot < args.num_slots) args.slot_to_row[slot] = row;
    if (row < 0 || row >= args.num_rows) continue;  // the latter where num_rows is wrong
    args.row_to_slot[row] = slot;
    args.row_to_token[row] = slot / args.slots_of_token;
  }
}

}  // namespace

void launch_token_permutation(const TokenPermutationArgs& args, CUstream_st* stream) {
  const unsigned grid = num_blocks(args.num_slots, kSlotsOfSortBlock);
  const std::size_t bytes = args.num_experts * sizeof(int);
  if (grid > 0) count_slots<<<grid, kBlock, bytes, stream>>>(args);
  scan_counts<<<1, kScanBlock, 0, stream>>>(args, static_cast<int>(grid));
  if (grid > 0) place_slots<<<grid, kBlock, bytes * kWarps, stream>>>(args);
  check_launch("build_token_permutation");
}

}  // namespace d9d::kernels::detail
