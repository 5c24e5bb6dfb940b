// What the grouped products share: a cluster of two blocks works on one tile of 256 columns of A (128 a block) and up
// to 256 of B, which both blocks read; each loads half of B for both. In a block one warp loads, two warpgroups compute
// 64 columns of A each. They stay a little apart, so that one computes while the other writes its result.
#pragma once

#include "d9d/kernels/device/cluster.cuh"
#include "d9d/kernels/device/launch.cuh"
#include "d9d/kernels/device/ldmatrix.cuh"
#include "d9d/kernels/device/tma.cuh"
#include "d9d/kernels/device/wgmma.cuh"
#include "d9d/kernels/grouped_mm/grouped_tiles.h"
#include "d9d/kernels/grouped_mm/tile_turns.cuh"

namespace d9d::kernels::detail {

constexpr int kStages = 4;
constexpr int kInnerOfBlock = 64;       // of the dim that is summed over, a stage
constexpr int kBoxBytes = 64 * 64 * 2;  // of 64 x 64 elements
constexpr int kWarpgroup = 128;
constexpr int kThreads = 3 * kWarpgroup;
constexpr int kLead = 2;  // stages that the first computing warpgroup is ahead of the second

struct GroupedShared {
  unsigned char a[kStages][2][kBoxBytes];  // a box a computing warpgroup
  unsigned char b[kStages][4][kBoxBytes];
  unsigned char results[2][2][kBoxBytes];  // two pieces a computing warpgroup
  Mbarrier full[kStages];
  Mbarrier empty[kStages];
  SharedTurns turns;
  TileOrder order;
};
static_assert(sizeof(GroupedShared) <= 227 * 1024);
static_assert(sizeof(GroupTiles) * kMaxGroups <= sizeof(GroupedShared::results));

using Ring = PipelineState<kStages>;

struct Nothing {
  __device__ __forceinline__ void operator()() const {}
};

// The consumers' view: what to add up, and where a warpgroup's columns of A are.
struct Consumer {
  GroupedShared& shared;
  int warpgroup;  // 0 or 1
  Ring at = {};
  int piece = 0;        // of shared.results, to be written next
  int unreleased = -1;  // a stage that stores of this warpgroup still read

  __device__ __forceinline__ int thread() const { return threadIdx.x % kWarpgroup; }
  __device__ __forceinline__ int warp() const { return thread() / 32; }
  __device__ __forceinline__ int lane() const { return thread() % 32; }
  __device__ __forceinline__ void meet() const { named_barrier_sync(2 + warpgroup, kWarpgroup); }

  // Where this warpgroup may write a piece of its result.
  __device__ __forceinline__ unsigned char* begin_piece() {
    unsigned char* const memory = shared.results[warpgroup][piece];
    piece ^= 1;
    if (thread() == 0) tma_store_wait_read<1>();
    meet();
    return memory;
  }
  // All of it is written; store() sends it on its way, by one thread.
  template <class Store>
  __device__ __forceinline__ void end_piece(const Store& store) const {
    fence_proxy_async();
    meet();
    if (thread() != 0) return;
    store();
    tma_store_commit();
  }

  __device__ __forceinline__ void release(int stage) const {
    if (lane() < 2) mbarrier_arrive_cluster(shared.empty[stage], lane());
  }

  template <int kColumns, Major kAMajor, Major kBMajor>
  __device__ __forceinline__ void start_product(float (&sums)[128], int step, bool add) const {
    wgmma<kColumns, kAMajor, kBMajor>(
        sums, smem_descriptor(shared.a[at.stage][warpgroup], kBoxBytes) + step * kDescriptorStepK<kAMajor>,
        smem_descriptor(shared.b[at.stage], kBoxBytes) + step * kDescriptorStepK<kBMajor>, add);
  }

  // sums = A @ B over whole stages, one or more. after_first() is called while the first of them is multiplied.
  template <int kColumns, Major kAMajor, Major kBMajor, class AfterFirst = Nothing>
  __device__ __forceinline__ void add_up(float (&sums)[128], int num_stages, const AfterFirst& after_first = {}) {
    // With fewer stages the first could arrive twice before the second comes.
    const bool is_apart = num_stages >= kStages;
    if (is_apart && warpgroup == 1) named_barrier_sync(1, 2 * kWarpgroup);
    int previous = 0;
    for (int i = 0; i < num_stages; ++i) {
      mbarrier_wait_parity(shared.full[at.stage], at.phase);
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < 4; ++step) start_product<kColumns, kAMajor, kBMajor>(sums, step, i > 0 || step > 0);
      wgmma_commit_group();
      if (i > 0) {
        wgmma_wait_group<1>();
        release(previous);
      } else {
        after_first();
      }
      if (is_apart && warpgroup == 0 && i == kLead - 1) named_barrier_arrive(1, 2 * kWarpgroup);
      previous = at.stage;
      at.advance();
    }
    wgmma_wait_group<0>();
    fence_accumulators(sums);
    release(previous);
  }
};

// Calls visit(group, tile within the group) for the tiles of this cluster.
template <class Turns, class Visit>
__device__ __forceinline__ void for_each_tile(const TileOrder& order, int num_groups, Turns& turns,
                                              const Visit& visit) {
  const int num_tiles = order.first_tile[num_groups];
  int place = 0;
  for (int tile = first_turn(); tile < num_tiles; tile = turns.next()) {
    place = order.place_of(tile, place);
    visit(static_cast<int>(order.group[place]), tile - order.first_tile[place]);
  }
}

// The body of a kernel. Product has
//   GroupTiles tiles_of(int rows);       Tile tile_at(order, int group, int tile);      int num_stages(tile);
//   int bytes_of_stage(tile, int i);     void load(tile, int i, a, b, Mbarrier&);  // the i-th stage
//   void compute(tile, Consumer&);       // uses num_stages stages
template <class Product, class Offsets>
__device__ __forceinline__ void run_grouped(const Product& product, const Offsets& offsets, int num_groups,
                                            int* num_drawn) {
  extern __shared__ __align__(1024) unsigned char memory[];
  GroupedShared& shared = *reinterpret_cast<GroupedShared*>(memory);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      mbarrier_init(shared.full[stage], 1);
      mbarrier_init(shared.empty[stage], 2 * 2 * kWarpgroup / 32);  // the computing warps of both blocks
    }
    shared.turns.init(1 + 2 * kWarpgroup / 32);
    fence_mbarrier_init();
  }
  order_tiles(
      shared.order, offsets, num_groups, static_cast<int>(threadIdx.x), kThreads,
      [&](int rows) { return product.tiles_of(rows); }, reinterpret_cast<GroupTiles*>(shared.results),
      [] { __syncthreads(); });
  cluster_sync();
  const int warp = __shfl_sync(0xffffffffU, static_cast<int>(threadIdx.x) / 32, 0);
  if (warp < kWarpgroup / 32) {
    warpgroup_reg_dealloc<40>();
    if (warp == 0 && threadIdx.x % 32 == 0) {
      Ring at;
      TurnDrawer turns{.turns = shared.turns, .num_drawn = num_drawn};
      for_each_tile(shared.order, num_groups, turns, [&](int group, int index) {
        const auto tile = product.tile_at(shared.order, group, index);
        const int num_stages = product.num_stages(tile);
        if (num_stages == 0) turns.draw();
        for (int i = 0; i < num_stages; ++i, at.advance()) {
          mbarrier_wait_parity(shared.empty[at.stage], at.phase ^ 1);
          if (i == larger(num_stages - kStages, 0)) turns.draw();
          mbarrier_arrive_expect_tx(shared.full[at.stage], product.bytes_of_stage(tile, i));
          product.load(tile, i, shared.a[at.stage], shared.b[at.stage], shared.full[at.stage]);
        }
      });
    }
    __syncwarp();
  } else {
    warpgroup_reg_alloc<232>();
    Consumer consumer{.shared = shared, .warpgroup = warp / (kWarpgroup / 32) - 1};
    TurnReader turns{.turns = shared.turns};
    for_each_tile(shared.order, num_groups, turns, [&](int group, int index) {
      product.compute(product.tile_at(shared.order, group, index), consumer);
    });
    if (consumer.thread() == 0) tma_store_wait_read<0>();
  }
  cluster_sync();  // the other block may still write and arrive here
}

// Makes a kernel startable; the tensor maps of its arguments come after it.
template <class... Args>
void prepare_grouped(void (*kernel)(Args...)) {
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(GroupedShared));
}

// Two blocks a cluster, on all multiprocessors of the current device.
[[nodiscard]] inline unsigned num_blocks_of_device() {
  int device = 0, num_multiprocessors = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&num_multiprocessors, cudaDevAttrMultiProcessorCount, device);
  return static_cast<unsigned>(num_multiprocessors) / 2 * 2;
}

}  // namespace d9d::kernels::detail
