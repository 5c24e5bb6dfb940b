// A ring of buffers in shared memory between a thread that has boxes of tensors copied into it and warps that use them,
// in a cluster of two blocks that share some of the boxes.
//
// Example
//   producer:  wait(empty[at.stage], at.phase ^ 1); arrive_expecting(full[at.stage], bytes);
//              load_box(buffer[at.stage], map, full[at.stage], {column, row, group}); at.advance();
//   consumer:  wait(full[at.stage], at.phase); ...use...; arrive_at(empty[at.stage], block_of_cluster); at.advance();
#pragma once

#include <cuda.h>

#include <cstdint>

#include "d9d/kernels/device/bulk_copy.cuh"

namespace d9d::kernels::detail {

using Barrier = std::uint64_t;

// Where a thread stands in a ring.
template <int kStages>
struct RingPosition {
  int stage = 0;
  std::uint32_t phase = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

__device__ __forceinline__ void init_barrier(Barrier& barrier, std::uint32_t num_arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)), "r"(num_arrivals) : "memory");
}

// After the last init_barrier(), by its thread: other blocks and copies see them.
__device__ __forceinline__ void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void wait(Barrier& barrier, std::uint32_t phase) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra end;\n"
      "bra again;\n"
      "end:\n}" ::"r"(shared_address(&barrier)),
      "r"(phase)
      : "memory");
}

// An arrival that also announces bytes of copies.
__device__ __forceinline__ void arrive_expecting(Barrier& barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)), "r"(bytes)
               : "memory");
}

// Arrives at the same barrier of a block of the cluster, which then may have copies overwrite what was read here. It
// does not publish writes.
__device__ __forceinline__ void arrive_at(Barrier& barrier, std::uint32_t block_of_cluster) {
  asm volatile(
      "{\n.reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(shared_address(&barrier)),
      "r"(block_of_cluster)
      : "memory");
}

// Writes to the same place of a block of the cluster, whose barrier counts the four bytes.
__device__ __forceinline__ void send_to(int& place, Barrier& barrier, std::uint32_t block_of_cluster, int value) {
  asm volatile(
      "{\n.reg .b32 to, arrival;\n"
      "mapa.shared::cluster.u32 to, %0, %2;\n"
      "mapa.shared::cluster.u32 arrival, %1, %2;\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [to], %3, [arrival];\n}" ::"r"(
          shared_address(&place)),
      "r"(shared_address(&barrier)), "r"(block_of_cluster), "r"(value)
      : "memory");
}

// Where a box begins, dims from the innermost out.
struct BoxOrigin {
  int x, y, z;
};

__device__ __forceinline__ void load_box(void* shared, const CUtensorMap& map, Barrier& barrier, const BoxOrigin& at) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::
          "r"(shared_address(shared)),
      "l"(&map), "r"(shared_address(&barrier)), "r"(at.x), "r"(at.y), "r"(at.z)
      : "memory");
}

// The same box into both blocks of a cluster of two; each block's barrier counts its bytes.
__device__ __forceinline__ void load_box_for_both(void* shared, const CUtensorMap& map, Barrier& barrier,
                                                  const BoxOrigin& at) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1, {%3, %4, %5}], [%2], %6;" ::"r"(shared_address(shared)),
      "l"(&map), "r"(shared_address(&barrier)), "r"(at.x), "r"(at.y), "r"(at.z), "h"(std::uint16_t{3})
      : "memory");
}

// A box to global memory. The threads that wrote it have called publish_shared_writes() and met this thread.
__device__ __forceinline__ void store_box(const CUtensorMap& map, const void* shared, const BoxOrigin& at) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(&map),
               "r"(shared_address(shared)), "r"(at.x), "r"(at.y), "r"(at.z)
               : "memory");
}
// The same, added to what is there. Floats below the smallest normal one count as zero.
__device__ __forceinline__ void add_box(const CUtensorMap& map, const void* shared, const BoxOrigin& at) {
  asm volatile("cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(&map),
               "r"(shared_address(shared)), "r"(at.x), "r"(at.y), "r"(at.z)
               : "memory");
}
// Ends a group, maybe an empty one, of this thread's stores.
__device__ __forceinline__ void end_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// The boxes of all but the last kPending groups of this thread may change.
template <int kPending>
__device__ __forceinline__ void wait_for_stored_boxes() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

__device__ __forceinline__ void prefetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

__device__ __forceinline__ std::uint32_t block_of_cluster() {
  std::uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// All threads of all blocks of the cluster.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Some warps of the block: `num_threads` threads meet at barrier `id`, 1 to 15.
__device__ __forceinline__ void sync_threads(int id, int num_threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(num_threads) : "memory");
}
// Counts as having been there without waiting for the others.
__device__ __forceinline__ void arrive_threads(int id, int num_threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(num_threads) : "memory");
}

// What this thread wrote to shared memory is seen by tensor cores and copies that start after it.
__device__ __forceinline__ void publish_shared_writes() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Registers a thread of the warpgroup from here on, a multiple of 8.
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace d9d::kernels::detail
