// mbarrier: barriers in shared memory that count arrivals of threads and bytes of asynchronous copies, and the state of
// a ring of buffers that a producer fills and consumers empty, synchronised by such barriers.
//
// Example
//   producer:  mbarrier_wait_parity(empty[state.stage], state.phase ^ 1);
//              mbarrier_arrive_expect_tx(full[state.stage], bytes);
//              tma_load(buffer[state.stage], map, full[state.stage], {column, row, group});  state.advance();
//   consumer:  mbarrier_wait_parity(full[state.stage], state.phase);
//              ...use...
//              mbarrier_arrive_cluster(empty[state.stage], rank);  state.advance();
#pragma once

#include "d9d/kernels/device/smem_address.cuh"

namespace d9d::kernels::detail {

using Mbarrier = std::uint64_t;

// The stage of a ring that a thread uses next, and the parity of the phase that the stage's barriers are in.
template <int kStages>
struct PipelineState {
  int stage = 0;
  std::uint32_t phase = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

__device__ __forceinline__ void mbarrier_init(Mbarrier& barrier, std::uint32_t num_arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(smem_address(&barrier)), "r"(num_arrivals) : "memory");
}

// Makes initialised barriers visible to other blocks of the cluster and to asynchronous copies. The thread that
// initialised them calls it once, after the last mbarrier_init().
__device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Waits until the phase with parity `phase` is complete.
__device__ __forceinline__ void mbarrier_wait_parity(Mbarrier& barrier, std::uint32_t phase) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra end;\n"
      "bra again;\n"
      "end:\n}" ::"r"(smem_address(&barrier)),
      "r"(phase)
      : "memory");
}

// Arrives, and makes the current phase wait for `bytes` more bytes of asynchronous copies.
__device__ __forceinline__ void mbarrier_arrive_expect_tx(Mbarrier& barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(smem_address(&barrier)), "r"(bytes)
               : "memory");
}

// Arrives at block `cta_rank`'s copy of the barrier, to tell that block that its producer may overwrite the buffer that
// this thread has read. The arrival does not make writes of this thread visible.
__device__ __forceinline__ void mbarrier_arrive_cluster(Mbarrier& barrier, std::uint32_t cta_rank) {
  asm volatile(
      "{\n.reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(smem_address(&barrier)),
      "r"(cta_rank)
      : "memory");
}

}  // namespace d9d::kernels::detail
