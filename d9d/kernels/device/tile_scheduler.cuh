// Which tile a cluster of two blocks works on next. Each begins with one of its own; after that its first block draws
// numbers from a counter in global memory, so that clusters that are done early, or before others came because kernels
// beside this one held their multiprocessors, take what is left. All who ask in a cluster get the same numbers.
#pragma once

#include "d9d/kernels/device/cluster.cuh"

namespace d9d::kernels::detail {

constexpr int kTurns = 4;  // that some have read and others have not, at most

struct SharedTurns {
  Mbarrier known[kTurns];
  Mbarrier read[kTurns];  // by all readers of both blocks; the first block's
  int tile[kTurns];

  __device__ __forceinline__ void init(std::uint32_t num_readers_of_block) {
    for (int turn = 0; turn < kTurns; ++turn) {
      mbarrier_init(known[turn], 1);
      mbarrier_init(read[turn], 2 * num_readers_of_block);
    }
  }
};

__device__ __forceinline__ int num_clusters() { return static_cast<int>(gridDim.x) / 2; }
__device__ __forceinline__ int first_turn() { return static_cast<int>(blockIdx.x) / 2; }

// A warp that asks.
struct TurnReader {
  SharedTurns& turns;
  PipelineState<kTurns> at = {};

  __device__ __forceinline__ int next() {
    mbarrier_wait_parity(turns.known[at.stage], at.phase);
    const int tile = *static_cast<const volatile int*>(&turns.tile[at.stage]);
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive_cluster(turns.read[at.stage], 0);
    at.advance();
    return tile;
  }
};

// The one thread of each block that asks and, in the first block, draws.
struct TurnDrawer {
  SharedTurns& turns;
  int* num_drawn;  // zero when the kernel starts
  bool is_first_block = cta_rank() == 0;
  PipelineState<kTurns> at = {};
  int drawn = 0;

  // Once before each next(), early: the answer takes a microsecond.
  __device__ __forceinline__ void draw() {
    if (is_first_block) drawn = num_clusters() + atomicAdd(num_drawn, 1);
  }

  __device__ __forceinline__ int next() {
    Mbarrier& known = turns.known[at.stage];
    mbarrier_arrive_expect_tx(known, sizeof(int));
    if (is_first_block) {
      mbarrier_wait_parity(turns.read[at.stage], at.phase ^ 1);
      for (std::uint32_t block = 0; block < 2; ++block) st_async(turns.tile[at.stage], known, block, drawn);
    }
    mbarrier_wait_parity(known, at.phase);
    const int tile = *static_cast<const volatile int*>(&turns.tile[at.stage]);
    mbarrier_arrive_cluster(turns.read[at.stage], 0);
    at.advance();
    return tile;
  }
};

}  // namespace d9d::kernels::detail
