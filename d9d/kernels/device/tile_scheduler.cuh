// Decides which tile a cluster of two blocks computes next. The first tile of a cluster is the cluster's index; for
// each further one the producer thread of its first block increments a counter in global memory. So clusters that are
// faster, or that start earlier because concurrent kernels occupy multiprocessors, compute more tiles. All producers
// and consumers of a cluster see the same sequence of tiles.
#pragma once

#include "d9d/kernels/device/cluster.cuh"

namespace d9d::kernels::detail::persistent_gemm {

// A ring of tile numbers that the producer of the first block sends to both blocks of the cluster.
struct SchedulerStorage {
  static constexpr int kDepth = 4;  // how many tiles the fastest reader can be ahead of the slowest

  Mbarrier full[kDepth];
  Mbarrier empty[kDepth];  // used in the first block only: all readers of both blocks arrive there
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

// The scheduler as a consumer warp uses it.
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

// The scheduler as the producer thread of a block uses it. The first block's producer fetches tiles for both blocks.
struct ProducerScheduler {
  SchedulerStorage& storage;
  int* tile_counter;  // zero when the kernel starts
  bool is_first_block = cta_rank() == 0;
  PipelineState<SchedulerStorage::kDepth> state = {};
  int fetched = 0;

  // Requests the tile that the following next() returns. Call it once before each next(), and early: the atomic on the
  // counter takes a microsecond.
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
