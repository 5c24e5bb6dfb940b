// Formula: out_a = x_a cos_a - x_b sin_a, out_b = x_b cos_b + x_a sin_b; the backward rotates with the transpose.
// Legend:  channels a and b of a head are rotated with each other; channels beyond Dr are copied.
// Mapping: a thread processes two channels of a head, of any dtype and strides.
// Numerics: fp32 (fp64 for fp64 heads), rounded once.
// Traffic: heads are read once and written once; tables are read once per head, mostly from caches.
#include "d9d/kernels/device/launch.cuh"
#include "d9d/kernels/device/vector.cuh"
#include "d9d/kernels/rotary/channels.cuh"
#include "d9d/kernels/rotary/heads_view.h"
#include "d9d/kernels/rotary/rotary_kernel.h"

namespace d9d::kernels::detail {
namespace {

constexpr int kBlock = 256;

// A thread rotates two channels of a head, or copies them.
template <class T, class Table>
__global__ void __launch_bounds__(kBlock)
    rotary(const RotaryArgs args, std::int64_t num_items, std::int64_t num_slots) {
  pdl_wait_and_trigger();
  using A = Accumulator<T>;
  const std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  if (item >= num_items) return;
  const std::int64_t row = item / num_slots;  // counts heads of all tokens
  const std::int64_t num_heads = args.first.num_heads + args.second.num_heads;
  const std::int64_t token = row / num_heads;
  const bool is_first = row - token * num_heads < args.first.num_heads;
  const RotaryHeads& heads = is_first ? args.first : args.second;
  const std::int64_t head = row - token * num_heads - (is_first ? 0 : args.first.num_heads);
  const std::int64_t position = token % args.num_positions;
  const T* const x = static_cast<const T*>(heads.x) + token / args.num_positions * heads.batch_stride +
                     position * heads.position_stride + head * heads.head_stride;
  T* const out = static_cast<T*>(heads.out) + (token * heads.num_heads + head) * args.head_dim;

  const auto [a, b] = channels_of<1>(static_cast<int>(args.head_dim), static_cast<int>(args.rotary_dim),
                                     static_cast<int>(item - row * num_slots), args.is_interleaved);
  if (a >= args.rotary_dim) {
    out[a] = x[a];
    if (b >= 0) out[b] = x[b];
    return;
  }
  const std::int64_t table_row = (args.num_table_rows > args.num_positions ? token : position) * args.rotary_dim;
  const Table* const cos = static_cast<const Table*>(args.cos) + table_row;
  const Table* const sin = static_cast<const Table*>(args.sin) + table_row;
  const A sin_a = args.is_transposed ? -widen(sin[b]) : widen(sin[a]);
  const A sin_b = args.is_transposed ? -widen(sin[a]) : widen(sin[b]);
  const A x_a = widen(x[a]);
  const A x_b = widen(x[b]);
  out[a] = narrow<T>(x_a * widen(cos[a]) - x_b * sin_a);
  out[b] = narrow<T>(x_b * widen(cos[b]) + x_a * sin_b);
}

template <class T, class Table>
void launch(const RotaryArgs& args, CUstream_st* stream) {
  const std::int64_t slots_of_head = num_slots(args.head_dim, args.rotary_dim, 1);
  const std::int64_t num_items = args.num_tokens * slots_of_head * (args.first.num_heads + args.second.num_heads);
  launch_pdl(rotary<T, Table>, {num_blocks(num_items, kBlock), kBlock}, stream, args, num_items, slots_of_head);
}

}  // namespace

void d9d_launch_rotary(const RotaryArgs& args, CUstream_st* stream) {
  with_element_type(args.dtype, [&]<class T>(Element<T>) {
    args.table_dtype == args.dtype ? launch<T, T>(args, stream) : launch<T, Accumulator<T>>(args, stream);
  });
  check_launch("apply_rotary");
}

}  // namespace d9d::kernels::detail
