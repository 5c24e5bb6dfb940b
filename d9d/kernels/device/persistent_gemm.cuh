// The main loop of GEMMs on Hopper's tensor cores: bf16 in, fp32 accumulators, warp-specialised and persistent.
//
//   cluster   two blocks; computes one tile at a time, of kClusterM along M (kBlockM per block) and up to kBlockN along
//             N (tile_order.h); both blocks use the same B, of which each loads half and multicasts it to both
//   block     one producer warp, whose first lane starts the TMA loads, and two consumer warpgroups of 64 along M each
//   stage     kBlockK along the reduced dim K; shared memory has a ring of kStages stages
//
// The first warpgroup stays kLead stages ahead of the second, so that one computes while the other runs its epilogue.
// A kernel supplies a problem: the tiles, the loads of a stage, and the epilogue (run_persistent_gemm).
#pragma once

#include "d9d/kernels/device/cluster.cuh"
#include "d9d/kernels/device/launch.cuh"
#include "d9d/kernels/device/ldmatrix.cuh"
#include "d9d/kernels/device/tile_order.h"
#include "d9d/kernels/device/tile_scheduler.cuh"
#include "d9d/kernels/device/tma.cuh"
#include "d9d/kernels/device/wgmma.cuh"

namespace d9d::kernels::detail::persistent_gemm {

constexpr int kStages = 4;
constexpr int kBlockK = 64;
constexpr int kBoxBytes = 64 * 64 * 2;  // a box of 64 x 64 bf16
constexpr int kWarpgroup = 128;
constexpr int kThreads = 3 * kWarpgroup;
constexpr int kLead = 2;

struct SharedStorage {
  unsigned char a[kStages][2][kBoxBytes];  // one box per consumer warpgroup
  unsigned char b[kStages][4][kBoxBytes];
  unsigned char epilogue[2][2][kBoxBytes];  // two buffers per consumer warpgroup
  Mbarrier full[kStages];
  Mbarrier empty[kStages];
  SchedulerStorage scheduler;
  TileOrder order;
};
static_assert(sizeof(SharedStorage) <= 227 * 1024);
static_assert(sizeof(GroupTiles) * kMaxGroups <= sizeof(SharedStorage::epilogue));

struct NoOp {
  __device__ __forceinline__ void operator()() const {}
};

// A consumer warpgroup: its position in the ring, the matrix products of a tile, and its epilogue buffers.
struct Consumer {
  SharedStorage& shared;
  int warpgroup;  // 0 or 1
  PipelineState<kStages> state = {};
  int epilogue_buffer = 0;      // index of the buffer of shared.epilogue to write next
  int stage_being_stored = -1;  // a stage that TMA stores of this warpgroup may still read; -1: none

  __device__ __forceinline__ int thread() const { return threadIdx.x % kWarpgroup; }
  __device__ __forceinline__ int warp() const { return thread() / 32; }
  __device__ __forceinline__ int lane() const { return thread() % 32; }
  __device__ __forceinline__ void sync() const { named_barrier_sync(2 + warpgroup, kWarpgroup); }

  // Returns a buffer of 64 rows of 128 bytes that this warpgroup may write. All its threads call this.
  __device__ __forceinline__ unsigned char* begin_epilogue() {
    unsigned char* const buffer = shared.epilogue[warpgroup][epilogue_buffer];
    epilogue_buffer ^= 1;
    if (thread() == 0) tma_store_wait_read<1>();
    sync();
    return buffer;
  }
  // All threads call this after writing their part of the buffer. One of them then calls store(), which starts the TMA
  // stores.
  template <class Store>
  __device__ __forceinline__ void end_epilogue(const Store& store) const {
    fence_proxy_async();
    sync();
    if (thread() != 0) return;
    store();
    tma_store_commit();
  }

  // Tells the producers of both blocks that this warp no longer reads the stage.
  __device__ __forceinline__ void release(int stage) const {
    if (lane() < 2) mbarrier_arrive_cluster(shared.empty[stage], lane());
  }

  // Starts the wgmma of slice `step` of the current stage: 16 of its kBlockK elements along K.
  template <int kN, Major kAMajor, Major kBMajor>
  __device__ __forceinline__ void start_wgmma(float (&accum)[128], int step, bool accumulate) const {
    wgmma<kN, kAMajor, kBMajor>(
        accum, smem_descriptor(shared.a[state.stage][warpgroup], kBoxBytes) + step * kDescriptorStepK<kAMajor>,
        smem_descriptor(shared.b[state.stage], kBoxBytes) + step * kDescriptorStepK<kBMajor>, accumulate);
  }

  // accum = A @ B over num_stages >= 1 whole stages. Calls after_first() while the wgmma of the first stage is in
  // flight.
  template <int kN, Major kAMajor, Major kBMajor, class AfterFirst = NoOp>
  __device__ __forceinline__ void main_loop(float (&accum)[128], int num_stages, const AfterFirst& after_first = {}) {
    // In shorter tiles the first warpgroup could arrive at the barrier twice before the second reaches it.
    const bool is_apart = num_stages >= kStages;
    if (is_apart && warpgroup == 1) named_barrier_sync(1, 2 * kWarpgroup);
    int previous = 0;
    for (int i = 0; i < num_stages; ++i) {
      mbarrier_wait_parity(shared.full[state.stage], state.phase);
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < 4; ++step) start_wgmma<kN, kAMajor, kBMajor>(accum, step, i > 0 || step > 0);
      wgmma_commit_group();
      if (i > 0) {
        wgmma_wait_group<1>();
        release(previous);
      } else {
        after_first();
      }
      if (is_apart && warpgroup == 0 && i == kLead - 1) named_barrier_arrive(1, 2 * kWarpgroup);
      previous = state.stage;
      state.advance();
    }
    wgmma_wait_group<0>();
    fence_accumulators(accum);
    release(previous);
  }
};

// Calls visit(group, index of the tile within the group) for each tile of this cluster.
template <class Scheduler, class Visit>
__device__ __forceinline__ void for_each_tile(const TileOrder& order, int num_groups, Scheduler& scheduler,
                                              const Visit& visit) {
  const int num_tiles = order.first_tile[num_groups];
  int place = 0;
  for (int tile = first_tile_of_cluster(); tile < num_tiles; tile = scheduler.next()) {
    place = order.place_of(tile, place);
    visit(static_cast<int>(order.group[place]), tile - order.first_tile[place]);
  }
}

// The offsets of a problem without groups, which is one group of all rows.
struct OneGroup {
  int num_rows;
  __device__ __forceinline__ int operator[](int group) const { return group * num_rows; }
};

// The body of a kernel. tile_counter must be zero when the kernel starts. Problem has
//   GroupTiles tiles_of(int rows);       Tile tile_at(order, int group, int tile);      int num_stages(tile);
//   int bytes_of_stage(tile, int i);     void load(tile, int i, a, b, Mbarrier&);       // the i-th stage
//   void compute(tile, Consumer&);       // main loop and epilogue; uses num_stages stages
template <class Problem, class Offsets>
__device__ __forceinline__ void run_persistent_gemm(const Problem& problem, const Offsets& offsets, int num_groups,
                                                    int* tile_counter) {
  extern __shared__ __align__(1024) unsigned char memory[];
  SharedStorage& shared = *reinterpret_cast<SharedStorage*>(memory);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      mbarrier_init(shared.full[stage], 1);
      mbarrier_init(shared.empty[stage], 2 * 2 * kWarpgroup / 32);  // the consumer warps of both blocks
    }
    shared.scheduler.init(1 + 2 * kWarpgroup / 32);
    fence_mbarrier_init();
  }
  order_tiles(
      shared.order, offsets, num_groups, static_cast<int>(threadIdx.x), kThreads,
      [&](int rows) { return problem.tiles_of(rows); }, reinterpret_cast<GroupTiles*>(shared.epilogue),
      [] { __syncthreads(); });
  cluster_sync();
  const int warp = __shfl_sync(0xffffffffU, static_cast<int>(threadIdx.x) / 32, 0);
  if (warp < kWarpgroup / 32) {
    warpgroup_reg_dealloc<40>();
    if (warp == 0 && threadIdx.x % 32 == 0) {
      PipelineState<kStages> state;
      ProducerScheduler scheduler{.storage = shared.scheduler, .tile_counter = tile_counter};
      for_each_tile(shared.order, num_groups, scheduler, [&](int group, int index) {
        const auto tile = problem.tile_at(shared.order, group, index);
        const int num_stages = problem.num_stages(tile);
        if (num_stages == 0) scheduler.fetch();
        for (int i = 0; i < num_stages; ++i, state.advance()) {
          mbarrier_wait_parity(shared.empty[state.stage], state.phase ^ 1);
          if (i == larger(num_stages - kStages, 0)) scheduler.fetch();
          mbarrier_arrive_expect_tx(shared.full[state.stage], problem.bytes_of_stage(tile, i));
          problem.load(tile, i, shared.a[state.stage], shared.b[state.stage], shared.full[state.stage]);
        }
      });
    }
    __syncwarp();
  } else {
    warpgroup_reg_alloc<232>();
    Consumer consumer{.shared = shared, .warpgroup = warp / (kWarpgroup / 32) - 1};
    ConsumerScheduler scheduler{.storage = shared.scheduler};
    for_each_tile(shared.order, num_groups, scheduler, [&](int group, int index) {
      problem.compute(problem.tile_at(shared.order, group, index), consumer);
    });
    if (consumer.thread() == 0) tma_store_wait_read<0>();
  }
  cluster_sync();  // keeps this block's shared memory alive while the other block may still write to it
}

// Allows the kernel its dynamic shared memory. Call it before tensor_map(): it also makes the device's context current
// on the calling thread, which the driver needs to encode tensor maps.
template <class... Args>
void prepare(void (*kernel)(Args...)) {
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(SharedStorage));
}

// The grid size: one block per multiprocessor of the current device, rounded down to whole clusters of two.
[[nodiscard]] inline unsigned num_persistent_blocks() {
  int device = 0, num_multiprocessors = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&num_multiprocessors, cudaDevAttrMultiProcessorCount, device);
  return static_cast<unsigned>(num_multiprocessors) / 2 * 2;
}

}  // namespace d9d::kernels::detail::persistent_gemm
