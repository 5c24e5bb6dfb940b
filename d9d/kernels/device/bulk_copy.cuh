// Copies of the bulk copy engine between global and shared memory: no registers, no instructions of other threads.
// Addresses and sizes are multiples of 16 bytes.
//
// Example (one warp)
//   __shared__ std::uint64_t arrived;
//   if (lane == 0) start_bulk_load(buffer, from, bytes, arrived);
//   __syncwarp();
//   wait_for_bulk_load(arrived);
//   if (lane == 0) start_bulk_store_of_much(to, buffer, bytes);
//   finish_reading_for_bulk_stores();      // of this thread; the buffer may change or end now
#pragma once

#include <cstdint>

namespace d9d::kernels::detail {

__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// The barrier counts the bytes.
__device__ __forceinline__ void copy_bulk_to_shared(void* shared, const void* global, std::uint32_t bytes,
                                                    std::uint64_t& barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(shared)),
               "l"(global), "r"(bytes), "r"(shared_address(&barrier))
               : "memory");
}

// Into the L2 cache only, which sees all writes: also before wait_for_kernel_before().
__device__ __forceinline__ void prefetch_bulk(const void* global, std::uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(global), "r"(bytes) : "memory");
}

// By one thread, once a barrier.
__device__ __forceinline__ void start_bulk_load(void* shared, const void* global, std::uint32_t bytes,
                                                std::uint64_t& barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&barrier)) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)), "r"(bytes)
               : "memory");
  copy_bulk_to_shared(shared, global, bytes, barrier);
}

// By any thread that knows the load was started.
__device__ __forceinline__ void wait_for_bulk_load(const std::uint64_t& barrier) {
  std::uint32_t is_done = 0;
  while (is_done == 0) {
    asm volatile(
        "{\n.reg .pred done;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], 0;\n"
        "selp.u32 %0, 1, 0, done;\n}"
        : "=r"(is_done)
        : "r"(shared_address(&barrier))
        : "memory");
  }
}

// Of what is more than caches hold: it leaves the L2 cache before what is read.
__device__ __forceinline__ void start_bulk_store_of_much(void* global, const void* shared, std::uint32_t bytes) {
  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%0], [%1], %2, %3;" ::"l"(global),
               "r"(shared_address(shared)), "r"(bytes), "l"(policy)
               : "memory");
}

__device__ __forceinline__ void finish_reading_for_bulk_stores() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

}  // namespace d9d::kernels::detail
