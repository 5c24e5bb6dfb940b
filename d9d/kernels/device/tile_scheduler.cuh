// Which tile a cluster of two blocks computes next. Each begins with one of its own; after that the producer thread of
// its first block takes numbers from a counter in global memory. Clusters that end early, or that start before others
// because kernels beside this one hold multiprocessors, take what is left. All producers and consumers of a cluster see
// the same sequence of tiles.
#pragma once

#include "d9d/kernels/device/cluster.cuh"

namespace d9d::kernels::detail::persistent_gemm {

// Tiles that travel from the producer of the first block to all threads of the cluster.
struct SchedulerStorage {
  static constexpr int kDepth = 4;  // tiles that some consumers have read and others have not, at most

  Mbarrier full[kDepth];
  Mbarrier empty[kDepth];  // of the first block: all readers of both blocks arrive here
  int tile[kDepth];

  __device__ __forceinline__ void init(std::uint32_t num_readers_of_block) {
    for (int i = 0; i < kDepth; ++i) {
      mbarrier_init(full[i], 1);
      mbarrier_init(empty[i], 2 * num_readers_of_block);
    }
  }
};

[[nodiscard]] __device__ __forceinline__ int num_clusters() { return static_cast<int>(gridDim.x) / 2; }
[[nodiscard]] __device__ __forceinline__ int first_tile_of_cluster() { return static_cast<int>(blockIdx.x) / 2; }

// The scheduler as a warp of consumers sees it.
struct ConsumerScheduler {
  SchedulerStorage& storage;
  PipelineState<SchedulerStorage::kDepth> state = {};

  __device__ __forceinline__ int next() {
    mbarrier_wait_parity(storage.full[state.stage], state.phase);
    const int tile = *static_cast<const volatile int*>(&storage.tile[state.stage]);
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive_cluster(storage.empty[state.stage], 0);
    state.advance();
    return tile;
  }
};

// The scheduler as the producer thread of a block sees it. That of the first block takes the tiles for both.
struct ProducerScheduler {
  SchedulerStorage& storage;
  int* tile_counter;  // zero when the kernel starts
  bool is_first_block = cta_rank() == 0;
  PipelineState<SchedulerStorage::kDepth> state = {};
  int fetched = 0;

  // Once before each next(), early: the answer of the counter takes a microsecond.
  __device__ __forceinline__ void fetch() {
    if (is_first_block) fetched = num_clusters() + atomicAdd(tile_counter, 1);
  }

  __device__ __forceinline__ int next() {
    Mbarrier& full = storage.full[state.stage];
    mbarrier_arrive_expect_tx(full, sizeof(int));
    if (is_first_block) {
      mbarrier_wait_parity(storage.empty[state.stage], state.phase ^ 1);
      for (std::uint32_t block = 0; block < 2; ++block) st_async(storage.tile[state.stage], full, block, fetched);
    }
    mbarrier_wait_parity(full, state.phase);
    const int tile = *static_cast<const volatile int*>(&storage.tile[state.stage]);
    mbarrier_arrive_cluster(storage.empty[state.stage], 0);
    state.advance();
    return tile;
  }
};

}  // namespace d9d::kernels::detail::persistent_gemm
