// mbarrier: barriers in shared memory that count arrivals of threads and bytes of asynchronous copies, and the ring of
// buffers that a producer fills and consumers empty through them.
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

// The buffer of a ring that a thread uses next, and the parity of its barriers' phase.
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

// The thread that initialised barriers calls it after the last one, so that other blocks and copies see them.
__device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Waits until the phase of parity `phase` is complete.
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

// Arrives, and makes the phase wait for `bytes` more bytes of copies.
__device__ __forceinline__ void mbarrier_arrive_expect_tx(Mbarrier& barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(smem_address(&barrier)), "r"(bytes)
               : "memory");
}

// Arrives at the same barrier of the block `cta_rank` of the cluster, which then may have copies overwrite what was
// read here. It does not publish writes.
__device__ __forceinline__ void mbarrier_arrive_cluster(Mbarrier& barrier, std::uint32_t cta_rank) {
  asm volatile(
      "{\n.reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(smem_address(&barrier)),
      "r"(cta_rank)
      : "memory");
}

}  // namespace d9d::kernels::detail
