#include "d9d/kernels/device/launch.cuh"
#include "d9d/kernels/device/vector.cuh"
#include "d9d/kernels/rotary/channels.cuh"
#include "d9d/kernels/rotary/rotary_kernel.h"
#include "d9d/kernels/rotary/slots.h"

namespace d9d::kernels::detail {
namespace {

constexpr int kBlock = 256;
constexpr int kHeadsOfThread = 2;  // turned by one read of the tables; more leave too few threads on a multiprocessor

// The channels of a slot, numbered through.
template <class T, int W>
struct Pieces {
  Elements<T, W> piece[2];
  __device__ __forceinline__ T& operator[](int i) { return piece[i / W].value[i % W]; }
  __device__ __forceinline__ const T& operator[](int i) const { return piece[i / W].value[i % W]; }
};
template <class T, int W>
__device__ __forceinline__ Pieces<T, W> load(const T* data, Channels channels) {
  Pieces<T, W> result = {};
  result.piece[0] = *reinterpret_cast<const Elements<T, W>*>(data + channels.first);
  if (channels.second >= 0) result.piece[1] = *reinterpret_cast<const Elements<T, W>*>(data + channels.second);
  return result;
}

// A thread turns one slot of kHeadsOfThread heads of a token. Index counts the threads: 32 bits where they suffice,
// since a division costs a fifth then.
template <class T, class Table, int W, bool kIsInterleaved, class Index>
__global__ void __launch_bounds__(kBlock, 3)
    turn(const RotaryArgs args, Index num_items, Index num_slots, Index num_head_groups) {
  wait_for_kernel_before();
  using A = Accumulator<T>;
  const Index item = static_cast<Index>(blockIdx.x) * kBlock + threadIdx.x;
  if (item >= num_items) return;
  const Index row = item / num_slots;  // of head groups
  const auto slot = static_cast<int>(item - row * num_slots);
  const Index token = row / num_head_groups;
  const int first_head = static_cast<int>(row - token * num_head_groups) * kHeadsOfThread;
  const Index batch = token / static_cast<Index>(args.num_positions);
  const Index position = token - batch * static_cast<Index>(args.num_positions);
  const Channels channels =
      channels_of<W>(static_cast<int>(args.head_dim), static_cast<int>(args.rotary_dim), slot, kIsInterleaved);
  const int num_first = static_cast<int>(args.first.num_heads);
  const int num_heads = num_first + static_cast<int>(args.second.num_heads);

  Pieces<T, W> x[kHeadsOfThread];
#pragma unroll
  for (int i = 0; i < kHeadsOfThread; ++i) {
    if (first_head + i >= num_heads) continue;
    const bool is_first = first_head + i < num_first;
    const RotaryHeads& heads = is_first ? args.first : args.second;
    x[i] = load<T, W>(static_cast<const T*>(heads.x) + static_cast<std::int64_t>(batch) * heads.batch_stride +
                          static_cast<std::int64_t>(position) * heads.position_stride +
                          (first_head + i - (is_first ? 0 : num_first)) * heads.head_stride,
                      channels);
  }
  if (channels.first < args.rotary_dim) {
    const std::int64_t table_row =
        static_cast<std::int64_t>(token < args.num_table_rows ? token : position) * args.rotary_dim;
    const auto cos = load<Table, W>(static_cast<const Table*>(args.cos) + table_row, channels);
    const auto sin = load<Table, W>(static_cast<const Table*>(args.sin) + table_row, channels);
#pragma unroll
    for (int j = 0; j < W; ++j) {
      const int a = kIsInterleaved ? 2 * j : j;
      const int b = kIsInterleaved ? 2 * j + 1 : W + j;
      const A cos_a = widen(cos[a]);
      const A cos_b = widen(cos[b]);
      const A sin_a = args.is_transposed ? -widen(sin[b]) : widen(sin[a]);
      const A sin_b = args.is_transposed ? -widen(sin[a]) : widen(sin[b]);
#pragma unroll
      for (int i = 0; i < kHeadsOfThread; ++i) {
        const A x_a = widen(x[i][a]);
        const A x_b = widen(x[i][b]);
        x[i][a] = narrow<T>(x_a * cos_a - x_b * sin_a);
        x[i][b] = narrow<T>(x_b * cos_b + x_a * sin_b);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kHeadsOfThread; ++i) {
    if (first_head + i >= num_heads) continue;
    const bool is_first = first_head + i < num_first;
    const RotaryHeads& heads = is_first ? args.first : args.second;
    T* const out = static_cast<T*>(heads.out) +
                   (static_cast<std::int64_t>(token) * heads.num_heads + first_head + i - (is_first ? 0 : num_first)) *
                       args.head_dim;
    *reinterpret_cast<Elements<T, W>*>(out + channels.first) = x[i].piece[0];
    if (channels.second >= 0) *reinterpret_cast<Elements<T, W>*>(out + channels.second) = x[i].piece[1];
  }
}

template <class T, class Table, int W>
void launch(const RotaryArgs& args, CUstream_st* stream) {
  const std::int64_t slots_of_head = num_slots(args.head_dim, args.rotary_dim, W);
  const std::int64_t num_heads = args.first.num_heads + args.second.num_heads;
  const std::int64_t num_head_groups = (num_heads + kHeadsOfThread - 1) / kHeadsOfThread;
  const std::int64_t num_items = args.num_tokens * slots_of_head * num_head_groups;
  const auto launch_counting = [&]<class Index>(Index) {
    const auto kernel = args.is_interleaved ? turn<T, Table, W, true, Index> : turn<T, Table, W, false, Index>;
    launch_after(kernel, {num_blocks(num_items, kBlock), kBlock}, stream, args, static_cast<Index>(num_items),
                 static_cast<Index>(slots_of_head), static_cast<Index>(num_head_groups));
  };
  num_items < INT32_MAX ? launch_counting(std::uint32_t()) : launch_counting(std::uint64_t());
}

template <class T>
bool is_aligned(const RotaryArgs& args, const RotaryHeads& heads) {
  const std::int64_t strides = args.head_dim | heads.batch_stride | heads.position_stride | heads.head_stride;
  return heads.num_heads == 0 || (strides % kWidth<T> == 0 && reinterpret_cast<std::uintptr_t>(heads.x) % 16 == 0);
}

template <class T, class Table>
void launch(const RotaryArgs& args, CUstream_st* stream) {
  const bool are_tables_aligned =
      (reinterpret_cast<std::uintptr_t>(args.cos) | reinterpret_cast<std::uintptr_t>(args.sin)) % 16 == 0;
  const bool is_aligned_to_vectors = args.rotary_dim % (2 * kWidth<T>) == 0 && are_tables_aligned &&
                                     is_aligned<T>(args, args.first) && is_aligned<T>(args, args.second);
  is_aligned_to_vectors ? launch<T, Table, kWidth<T>>(args, stream) : launch<T, Table, 1>(args, stream);
}

}  // namespace

void launch_rotary(const RotaryArgs& args, CUstream_st* stream) {
  with_element_type(args.dtype, [&]<class T>(Element<T>) {
    args.table_dtype == args.dtype ? launch<T, T>(args, stream) : launch<T, Accumulator<T>>(args, stream);
  });
  check_launch("apply_rotary");
}

}  // namespace d9d::kernels::detail
