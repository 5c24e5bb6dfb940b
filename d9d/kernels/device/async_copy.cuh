// Copies from global to shared memory that run while their thread computes. Each thread copies what it alone reads
// again, so that no other thread has to wait.
//
// Example
//   copy_async(&ring[stage][threadIdx.x], data + next, next < size);
//   end_batch();
//   wait_for_batches<1>();                  // all but the last batch of this thread are there
#pragma once

#include <cstdint>

namespace d9d::kernels::detail {

// 16 aligned bytes, or zeros where the source is not wanted (it is not read then).
__device__ __forceinline__ void copy_async(void* shared, const void* global, bool is_wanted) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                   static_cast<std::uint32_t>(__cvta_generic_to_shared(shared))),
               "l"(global), "r"(is_wanted ? 16 : 0)
               : "memory");
}

__device__ __forceinline__ void end_batch() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int kPending>
__device__ __forceinline__ void wait_for_batches() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace d9d::kernels::detail
