// The tensor memory accelerator (TMA): one thread starts copies of boxes of a tensor (tensor_map.cuh), or of contiguous
// bytes (`_1d`, addresses and sizes in multiples of 16 bytes), between global and shared memory. The copies use no
// registers. An mbarrier counts the bytes of loads; the thread that started stores waits for groups of them.
//
// Example (one warp)
//   __shared__ Mbarrier full;
//   if (lane == 0) {
//     mbarrier_init(full, 1);
//     fence_mbarrier_init();
//     mbarrier_arrive_expect_tx(full, bytes);
//     tma_load_1d(buffer, from, bytes, full);
//   }
//   __syncwarp();
//   mbarrier_wait_parity(full, 0);
//   if (lane == 0) tma_store_1d_evict_first(to, buffer, bytes);
//   tma_store_commit();
//   tma_store_wait_read<0>();              // from here on the buffer may be overwritten
#pragma once

#include <cuda.h>

#include "d9d/kernels/device/mbarrier.cuh"

namespace d9d::kernels::detail {

// The first element of a box in its tensor, listed from the innermost dim out.
struct TmaCoordinates {
  int x, y, z;
};

__device__ __forceinline__ void prefetch_tensor_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

__device__ __forceinline__ void tma_load(void* shared, const CUtensorMap& map, Mbarrier& barrier,
                                         const TmaCoordinates& at) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::
          "r"(smem_address(shared)),
      "l"(&map), "r"(smem_address(&barrier)), "r"(at.x), "r"(at.y), "r"(at.z)
      : "memory");
}

// Loads the same box into both blocks of a cluster of two; each block's barrier counts its bytes.
__device__ __forceinline__ void tma_load_multicast(void* shared, const CUtensorMap& map, Mbarrier& barrier,
                                                   const TmaCoordinates& at) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1, {%3, %4, %5}], [%2], %6;" ::"r"(smem_address(shared)),
      "l"(&map), "r"(smem_address(&barrier)), "r"(at.x), "r"(at.y), "r"(at.z), "h"(std::uint16_t{3})
      : "memory");
}

__device__ __forceinline__ void tma_load_1d(void* shared, const void* global, std::uint32_t bytes, Mbarrier& barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   smem_address(shared)),
               "l"(global), "r"(bytes), "r"(smem_address(&barrier))
               : "memory");
}

// Loads into the L2 cache only. It is allowed before pdl_wait_and_trigger() too: L2 is coherent with later writes.
__device__ __forceinline__ void tma_prefetch_1d(const void* global, std::uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(global), "r"(bytes) : "memory");
}

// fence.proxy.async: makes this thread's writes to shared memory visible to wgmma and TMA operations that start later.
__device__ __forceinline__ void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Stores a box. The threads that wrote it must have called fence_proxy_async() and then synchronised with this thread.
__device__ __forceinline__ void tma_store(const CUtensorMap& map, const void* shared, const TmaCoordinates& at) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(&map),
               "r"(smem_address(shared)), "r"(at.x), "r"(at.y), "r"(at.z)
               : "memory");
}
// Marks the stored lines to be evicted from L2 first, which suits results that are larger than the cache.
__device__ __forceinline__ void tma_store_1d_evict_first(void* global, const void* shared, std::uint32_t bytes) {
  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%0], [%1], %2, %3;" ::"l"(global),
               "r"(smem_address(shared)), "r"(bytes), "l"(policy)
               : "memory");
}
// Ends a group of stores of this thread; a group may be empty.
__device__ __forceinline__ void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Waits until the stores of all but the last kPending groups of this thread have read their shared memory.
template <int kPending>
__device__ __forceinline__ void tma_store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

}  // namespace d9d::kernels::detail
