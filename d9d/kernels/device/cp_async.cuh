// cp.async: copies of 16 bytes from global to shared memory that run while their thread computes. A thread that reads
// only what it copied itself needs no barrier.
//
// Example
//   cp_async(&ring[stage][threadIdx.x], data + next, next < size);
//   cp_async_commit();
//   cp_async_wait<1>();                  // all groups of this thread but the last one have arrived
#pragma once

#include "d9d/kernels/device/smem_address.cuh"

namespace d9d::kernels::detail {

// Copies 16 aligned bytes. Without `is_valid` it writes zeros and does not read the source.
__device__ __forceinline__ void cp_async(void* shared, const void* global, bool is_valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(smem_address(shared)), "l"(global),
               "r"(is_valid ? 16 : 0)
               : "memory");
}

// Ends a group of copies of this thread; a group may be empty.
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most the last kPending groups of this thread are incomplete.
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace d9d::kernels::detail
