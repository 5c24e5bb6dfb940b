// wgmma: products of bf16 matrices in shared memory on Hopper's tensor cores. A warpgroup (128 threads) computes
//   accum [64, N] += A [64, 16] @ B [16, N]      accumulated in fp32
//
// Example
//   wgmma_fence();
//   for (int k = 0; k < 4; ++k) {
//     wgmma<256, Major::kK, Major::kK>(accum, a + k * kDescriptorStepK<Major::kK>, b + k * kDescriptorStepK<Major::kK>,
//                                      k > 0);
//   }
//   wgmma_commit_group();
//   wgmma_wait_group<0>();
//   fence_accumulators(accum);
//
// Layout of accum: in thread t, accum[4 j + {0, 1}] are the elements of row t / 32 * 16 + t % 32 / 4 in columns
// 8 j + 2 (t % 4) + {0, 1}, and accum[4 j + {2, 3}] those of the same columns 8 rows further down.
#pragma once

#include "d9d/kernels/device/smem_address.cuh"

namespace d9d::kernels::detail {

// Which dim of A or B is contiguous in shared memory: K, the reduced dim, or the other one (M of A, N of B).
enum class Major : int { kK = 0, kMN = 1 };

// The descriptor of a matrix that begins at `address` and has rows of 64 elements (128 bytes) that a tensor map
// swizzled. mn_stride_bytes is used with Major::kMN: the distance from one run of 64 elements along M or N to the next.
[[nodiscard]] __device__ __forceinline__ std::uint64_t smem_descriptor(const void* address,
                                                                       std::uint32_t mn_stride_bytes = 16) {
  constexpr std::uint64_t kSwizzle128B = std::uint64_t{1} << 62;
  constexpr std::uint64_t kStrideOfEightRows = std::uint64_t{1024 / 16} << 32;
  return kSwizzle128B | kStrideOfEightRows | (std::uint64_t{mn_stride_bytes / 16} << 16) |
         ((smem_address(address) & 0x3FFFF) >> 4);
}

// What to add to a descriptor to advance 16 elements along K.
template <Major kMajor>
constexpr std::uint64_t kDescriptorStepK = kMajor == Major::kK ? 16 * 2 / 16 : 16 * 128 / 16;

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit_group() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most the last kPending committed groups are incomplete.
template <int kPending>
__device__ __forceinline__ void wgmma_wait_group() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Keeps the compiler from moving reads and writes of the accumulators to before this call.
template <int kCount>
__device__ __forceinline__ void fence_accumulators(float (&accum)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(accum[i])::"memory");
}

// clang-format off
#define D9D_REGISTERS_0 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define D9D_REGISTERS_1 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define D9D_REGISTERS_2 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define D9D_REGISTERS_3 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define D9D_REGISTERS_4 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define D9D_REGISTERS_5 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define D9D_REGISTERS_6 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define D9D_REGISTERS_7 "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define D9D_ACCUM(i)                                                                                                  \
  "+f"(accum[i]), "+f"(accum[i + 1]), "+f"(accum[i + 2]), "+f"(accum[i + 3]), "+f"(accum[i + 4]), "+f"(accum[i + 5]), \
  "+f"(accum[i + 6]), "+f"(accum[i + 7]), "+f"(accum[i + 8]), "+f"(accum[i + 9]), "+f"(accum[i + 10]),                \
  "+f"(accum[i + 11]), "+f"(accum[i + 12]), "+f"(accum[i + 13]), "+f"(accum[i + 14]), "+f"(accum[i + 15])
#define D9D_REGISTERS_UP_TO_0 D9D_REGISTERS_0
#define D9D_ACCUM_UP_TO_0 D9D_ACCUM(0)
#define D9D_REGISTERS_UP_TO_1 D9D_REGISTERS_UP_TO_0 ", " D9D_REGISTERS_1
#define D9D_ACCUM_UP_TO_1 D9D_ACCUM_UP_TO_0, D9D_ACCUM(16)
#define D9D_REGISTERS_UP_TO_2 D9D_REGISTERS_UP_TO_1 ", " D9D_REGISTERS_2
#define D9D_ACCUM_UP_TO_2 D9D_ACCUM_UP_TO_1, D9D_ACCUM(32)
#define D9D_REGISTERS_UP_TO_3 D9D_REGISTERS_UP_TO_2 ", " D9D_REGISTERS_3
#define D9D_ACCUM_UP_TO_3 D9D_ACCUM_UP_TO_2, D9D_ACCUM(48)
#define D9D_REGISTERS_UP_TO_4 D9D_REGISTERS_UP_TO_3 ", " D9D_REGISTERS_4
#define D9D_ACCUM_UP_TO_4 D9D_ACCUM_UP_TO_3, D9D_ACCUM(64)
#define D9D_REGISTERS_UP_TO_5 D9D_REGISTERS_UP_TO_4 ", " D9D_REGISTERS_5
#define D9D_ACCUM_UP_TO_5 D9D_ACCUM_UP_TO_4, D9D_ACCUM(80)
#define D9D_REGISTERS_UP_TO_6 D9D_REGISTERS_UP_TO_5 ", " D9D_REGISTERS_6
#define D9D_ACCUM_UP_TO_6 D9D_ACCUM_UP_TO_5, D9D_ACCUM(96)
#define D9D_REGISTERS_UP_TO_7 D9D_REGISTERS_UP_TO_6 ", " D9D_REGISTERS_7
#define D9D_ACCUM_UP_TO_7 D9D_ACCUM_UP_TO_6, D9D_ACCUM(112)
#define D9D_WGMMA(n, last, a, b, scale_d, a_major, b_major)                                                                 \
  if constexpr (kN == n) {                                                                                                  \
    asm volatile("{\n.reg .pred accumulate;\nsetp.ne.b32 accumulate, %" #scale_d ", 0;\n"                                   \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" D9D_REGISTERS_UP_TO_##last                    \
                 "}, %" #a ", %" #b ", accumulate, 1, 1, %" #a_major ", %" #b_major ";\n}"                                  \
                 : D9D_ACCUM_UP_TO_##last                                                                                   \
                 : "l"(a_descriptor), "l"(b_descriptor), "r"(static_cast<int>(accumulate)), "n"(static_cast<int>(kAMajor)), \
                   "n"(static_cast<int>(kBMajor)));                                                                         \
  }

// Starts the product of the matrices that two descriptors describe. It is added to accum with `accumulate` and replaces
// accum otherwise. kN is a multiple of 32 up to 256.
template <int kN, Major kAMajor, Major kBMajor>
__device__ __forceinline__ void wgmma(float (&accum)[128], std::uint64_t a_descriptor, std::uint64_t b_descriptor,
                                      bool accumulate) {
  D9D_WGMMA(32, 0, 16, 17, 18, 19, 20)
  D9D_WGMMA(64, 1, 32, 33, 34, 35, 36)
  D9D_WGMMA(96, 2, 48, 49, 50, 51, 52)
  D9D_WGMMA(128, 3, 64, 65, 66, 67, 68)
  D9D_WGMMA(160, 4, 80, 81, 82, 83, 84)
  D9D_WGMMA(192, 5, 96, 97, 98, 99, 100)
  D9D_WGMMA(224, 6, 112, 113, 114, 115, 116)
  D9D_WGMMA(256, 7, 128, 129, 130, 131, 132)
}

#undef D9D_REGISTERS_0
#undef D9D_REGISTERS_UP_TO_0
#undef D9D_ACCUM_UP_TO_0
#undef D9D_REGISTERS_1
#undef D9D_REGISTERS_UP_TO_1
#undef D9D_ACCUM_UP_TO_1
#undef D9D_REGISTERS_2
#undef D9D_REGISTERS_UP_TO_2
#undef D9D_ACCUM_UP_TO_2
#undef D9D_REGISTERS_3
#undef D9D_REGISTERS_UP_TO_3
#undef D9D_ACCUM_UP_TO_3
#undef D9D_REGISTERS_4
#undef D9D_REGISTERS_UP_TO_4
#undef D9D_ACCUM_UP_TO_4
#undef D9D_REGISTERS_5
#undef D9D_REGISTERS_UP_TO_5
#undef D9D_ACCUM_UP_TO_5
#undef D9D_REGISTERS_6
#undef D9D_REGISTERS_UP_TO_6
#undef D9D_ACCUM_UP_TO_6
#undef D9D_REGISTERS_7
#undef D9D_REGISTERS_UP_TO_7
#undef D9D_ACCUM_UP_TO_7
#undef D9D_ACCUM
#undef D9D_WGMMA
// clang-format on

}  // namespace d9d::kernels::detail
