// Products of bf16 matrices in shared memory on the tensor cores, by a warpgroup (128 threads) at a time:
//   sums [64, kColumns] += A [64, 16] @ B [16, kColumns]
//
// Example
//   begin_products();
//   for (int k = 0; k < 4; ++k)
//     multiply<256, Order::kByInner, Order::kByInner>(sums, a_at(k), b_at(k), k > 0);
//   end_products();
//   wait_for_products<0>();
//   keep_sums(sums);
//
// Thread t holds of row t / 32 * 16 + t % 32 / 4, columns 8 j + 2 (t % 4) + {0, 1}, sums[4 j + {0, 1}], and of the row
// 8 further down sums[4 j + {2, 3}].
#pragma once

#include <cstdint>

#include "d9d/kernels/device/bulk_copy.cuh"

namespace d9d::kernels::detail {

// What is contiguous in a matrix of A or B, in rows of 64 elements that a tensor map laid out: the dim that a product
// sums over, or the other.
enum class Order : int { kByInner = 0, kByOuter = 1 };

// A matrix in shared memory that begins at `address`; eight rows of 128 bytes are 1024 bytes. by_outer_step: bytes
// between pieces of 64 elements of the outer dim, for Order::kByOuter.
__device__ __forceinline__ std::uint64_t matrix_at(const void* address, std::uint32_t by_outer_step = 16) {
  constexpr std::uint64_t kSwizzled128 = std::uint64_t{1} << 62;
  constexpr std::uint64_t kEightRows = std::uint64_t{1024 / 16} << 32;
  return kSwizzled128 | kEightRows | (std::uint64_t{by_outer_step / 16} << 16) |
         ((shared_address(address) & 0x3FFFF) >> 4);
}

// What to add to a matrix_at() to go 16 elements further along the dim that is summed over.
template <Order kOrder>
constexpr std::uint64_t kInnerStep = kOrder == Order::kByInner ? 16 * 2 / 16 : 16 * 128 / 16;

__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void end_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// All but the last kPending groups of products, each ended by end_products(), are done.
template <int kPending>
__device__ __forceinline__ void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// The compiler may read and write the sums from here on.
template <int kCount>
__device__ __forceinline__ void keep_sums(float (&sums)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

// clang-format off
#define D9D_NAMES_0 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define D9D_NAMES_1 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define D9D_NAMES_2 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define D9D_NAMES_3 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define D9D_NAMES_4 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define D9D_NAMES_5 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define D9D_NAMES_6 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define D9D_NAMES_7 "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define D9D_SUMS(i)                                                                                             \
  "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3]), "+f"(sums[i + 4]), "+f"(sums[i + 5]), \
  "+f"(sums[i + 6]), "+f"(sums[i + 7]), "+f"(sums[i + 8]), "+f"(sums[i + 9]), "+f"(sums[i + 10]),               \
  "+f"(sums[i + 11]), "+f"(sums[i + 12]), "+f"(sums[i + 13]), "+f"(sums[i + 14]), "+f"(sums[i + 15])
#define D9D_NAMES_UP_TO_0 D9D_NAMES_0
#define D9D_SUMS_UP_TO_0 D9D_SUMS(0)
#define D9D_NAMES_UP_TO_1 D9D_NAMES_UP_TO_0 ", " D9D_NAMES_1
#define D9D_SUMS_UP_TO_1 D9D_SUMS_UP_TO_0, D9D_SUMS(16)
#define D9D_NAMES_UP_TO_2 D9D_NAMES_UP_TO_1 ", " D9D_NAMES_2
#define D9D_SUMS_UP_TO_2 D9D_SUMS_UP_TO_1, D9D_SUMS(32)
#define D9D_NAMES_UP_TO_3 D9D_NAMES_UP_TO_2 ", " D9D_NAMES_3
#define D9D_SUMS_UP_TO_3 D9D_SUMS_UP_TO_2, D9D_SUMS(48)
#define D9D_NAMES_UP_TO_4 D9D_NAMES_UP_TO_3 ", " D9D_NAMES_4
#define D9D_SUMS_UP_TO_4 D9D_SUMS_UP_TO_3, D9D_SUMS(64)
#define D9D_NAMES_UP_TO_5 D9D_NAMES_UP_TO_4 ", " D9D_NAMES_5
#define D9D_SUMS_UP_TO_5 D9D_SUMS_UP_TO_4, D9D_SUMS(80)
#define D9D_NAMES_UP_TO_6 D9D_NAMES_UP_TO_5 ", " D9D_NAMES_6
#define D9D_SUMS_UP_TO_6 D9D_SUMS_UP_TO_5, D9D_SUMS(96)
#define D9D_NAMES_UP_TO_7 D9D_NAMES_UP_TO_6 ", " D9D_NAMES_7
#define D9D_SUMS_UP_TO_7 D9D_SUMS_UP_TO_6, D9D_SUMS(112)
#define D9D_MULTIPLY(columns, last, a, b, adds, a_order, b_order)                                           \
  if constexpr (kColumns == columns) {                                                                      \
    asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, %" #adds ", 0;\n"                                   \
                 "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32.bf16.bf16 {" D9D_NAMES_UP_TO_##last   \
                 "}, %" #a ", %" #b ", adds, 1, 1, %" #a_order ", %" #b_order ";\n}"                         \
                 : D9D_SUMS_UP_TO_##last                                                                    \
                 : "l"(a_matrix), "l"(b_matrix), "r"(static_cast<int>(add)), "n"(static_cast<int>(kAOrder)), \
                   "n"(static_cast<int>(kBOrder)));                                                         \
  }

// Starts one product; without `add` the sums begin at zero. kColumns: a multiple of 32 up to 256.
template <int kColumns, Order kAOrder, Order kBOrder>
__device__ __forceinline__ void multiply(float (&sums)[128], std::uint64_t a_matrix, std::uint64_t b_matrix, bool add) {
  D9D_MULTIPLY(32, 0, 16, 17, 18, 19, 20)
  D9D_MULTIPLY(64, 1, 32, 33, 34, 35, 36)
  D9D_MULTIPLY(96, 2, 48, 49, 50, 51, 52)
  D9D_MULTIPLY(128, 3, 64, 65, 66, 67, 68)
  D9D_MULTIPLY(160, 4, 80, 81, 82, 83, 84)
  D9D_MULTIPLY(192, 5, 96, 97, 98, 99, 100)
  D9D_MULTIPLY(224, 6, 112, 113, 114, 115, 116)
  D9D_MULTIPLY(256, 7, 128, 129, 130, 131, 132)
}

#undef D9D_NAMES_0
#undef D9D_NAMES_UP_TO_0
#undef D9D_SUMS_UP_TO_0
#undef D9D_NAMES_1
#undef D9D_NAMES_UP_TO_1
#undef D9D_SUMS_UP_TO_1
#undef D9D_NAMES_2
#undef D9D_NAMES_UP_TO_2
#undef D9D_SUMS_UP_TO_2
#undef D9D_NAMES_3
#undef D9D_NAMES_UP_TO_3
#undef D9D_SUMS_UP_TO_3
#undef D9D_NAMES_4
#undef D9D_NAMES_UP_TO_4
#undef D9D_SUMS_UP_TO_4
#undef D9D_NAMES_5
#undef D9D_NAMES_UP_TO_5
#undef D9D_SUMS_UP_TO_5
#undef D9D_NAMES_6
#undef D9D_NAMES_UP_TO_6
#undef D9D_SUMS_UP_TO_6
#undef D9D_NAMES_7
#undef D9D_NAMES_UP_TO_7
#undef D9D_SUMS_UP_TO_7
#undef D9D_SUMS
#undef D9D_MULTIPLY
// clang-format on

}  // namespace d9d::kernels::detail
