// Thread block clusters and the warps of a block: ranks, barriers, stores to another block, and register reallocation.
#pragma once

#include "d9d/kernels/device/mbarrier.cuh"

namespace d9d::kernels::detail {

// The rank of this block in its cluster.
[[nodiscard]] __device__ __forceinline__ std::uint32_t cta_rank() {
  std::uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// Waits for all threads of all blocks of the cluster.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// st.async: writes `value` to the address of `place` in the shared memory of block `cta_rank` of the cluster. The same
// block's copy of `barrier` counts the four bytes.
__device__ __forceinline__ void st_async(int& place, Mbarrier& barrier, std::uint32_t cta_rank, int value) {
  asm volatile(
      "{\n.reg .b32 to, arrival;\n"
      "mapa.shared::cluster.u32 to, %0, %2;\n"
      "mapa.shared::cluster.u32 arrival, %1, %2;\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [to], %3, [arrival];\n}" ::"r"(
          smem_address(&place)),
      "r"(smem_address(&barrier)), "r"(cta_rank), "r"(value)
      : "memory");
}

// bar.sync: `num_threads` threads of the block (a multiple of 32: whole warps) wait for each other at the named barrier
// `id`, 1 to 15.
__device__ __forceinline__ void named_barrier_sync(int id, int num_threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(num_threads) : "memory");
}
// bar.arrive: arrives at the named barrier `id` without waiting for the other threads.
__device__ __forceinline__ void named_barrier_arrive(int id, int num_threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(num_threads) : "memory");
}

// setmaxnreg: sets how many registers each thread of this warpgroup has from here on, a multiple of 8.
template <int kRegisters>
__device__ __forceinline__ void warpgroup_reg_alloc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void warpgroup_reg_dealloc() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace d9d::kernels::detail
