// Formula: out_a = x_a cos_a - x_b sin_a, out_b = x_b cos_b + x_a sin_b; the backward rotates with the transpose.
// Legend:  channels a and b of a head are rotated with each other; channels beyond Dr are copied.
// Mapping: a group of threads, at most a warp, processes 4 heads of a token; a thread has one slot (heads_view.h) of
//          each, which is two vectors of 16 bytes.
// Numerics: fp32, rounded once.
// Traffic: queries and keys are read once and written once; a token's tables are read once for 4 heads.
#include "d9d/kernels/rotary/head_groups.cuh"
#include "d9d/kernels/rotary/rotary_kernel.h"

namespace d9d::kernels::detail {
namespace {

constexpr int kBlock = 128;
constexpr int kHeads = 4;  // of a thread group

template <class T, class Table, bool kIsInterleaved>
__global__ void __launch_bounds__(kBlock, 5) rotary_vectorized(const RotaryVectorizedArgs args, const HeadGrid grid) {
  pdl_wait_and_trigger();
  constexpr int W = kWidth<T>;
  const HeadsShape& shape = args.shape;
  const bool are_keys = blockIdx.x >= grid.num_blocks[0];
  const int num_heads = pick(shape.num_heads, are_keys);
  const unsigned index =
      (blockIdx.x - (are_keys ? grid.num_blocks[0] : 0)) * (kBlock / grid.group) + threadIdx.x / grid.group;
  const int slot = static_cast<int>(threadIdx.x) % grid.group;
  if (index >= pick(grid.num_groups, are_keys) || slot >= grid.num_slots) return;
  const HeadGroup group = head_group<kHeads>(pick(grid.groups_of_token, are_keys), index);
  const Channels channels = channels_of<W>(shape.head_dim, shape.rotary_dim, slot, kIsInterleaved);
  const int second = channels.second < 0 ? channels.first : channels.second;

  Packed<T, W> x[kHeads][2];
  const HeadsView view = pick(args.x, are_keys);
  const unsigned char* const heads = head_at(shape, grid, view, group);
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {  // missing heads load the last one again, so that loads need no branches
    const T* const head = reinterpret_cast<const T*>(
        heads + static_cast<std::uint64_t>(min(i, num_heads - 1 - group.head)) * view.head_bytes);
    x[i][0] = load_packed_from_global<T, W>(head + channels.first);
    x[i][1] = load_packed_from_global<T, W>(head + second);
  }
  TablePieces<Table, W> cos;
  TablePieces<Table, W> sin;
  load_tables(shape, args.cos, args.sin, table_row_of(shape, grid, group.token), channels, cos, sin);

  T* head = static_cast<T*>(pick(args.out, are_keys)) +
            (static_cast<std::uint64_t>(group.token) * num_heads + group.head) * shape.head_dim;
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    if (group.head + i >= num_heads) return;
#pragma unroll
    for (int p = 0; p < 2; ++p) {
      keep_packed(cos.piece[p]);
      keep_packed(sin.piece[p]);
    }
    float out[2][W];
#pragma unroll
    for (int j = 0; j < W; ++j) {
      const Pair<W, kIsInterleaved> at(j);
      const float x_a = x[i][at.a / W][at.a % W];
      const float x_b = x[i][at.b / W][at.b % W];
      const float sin_a = args.is_transposed ? -sin[at.b] : sin[at.a];
      const float sin_b = args.is_transposed ? -sin[at.a] : sin[at.b];
      out[at.a / W][at.a % W] = x_a * cos[at.a] - x_b * sin_a;
      out[at.b / W][at.b % W] = x_b * cos[at.b] + x_a * sin_b;
    }
    store_packed(pack<T>(out[0]), head + channels.first);
    if (channels.second >= 0) store_packed(pack<T>(out[1]), head + channels.second);
    head += shape.head_dim;
  }
}

}  // namespace

void d9d_launch_rotary_vectorized(const RotaryVectorizedArgs& args, CUstream_st* stream) {
  with_head_types(args.dtype, args.table_dtype, args.is_interleaved, [&]<class T, class Table, bool kIsInterleaved>() {
    HeadGrid grid = head_grid<kHeads>(args.shape, kWidth<T>);
    for (int i = 0; i < 2; ++i) grid.num_blocks[i] = num_blocks(grid.num_groups[i], kBlock / grid.group);
    launch_pdl(rotary_vectorized<T, Table, kIsInterleaved>, {grid.size(), kBlock}, stream, args, grid);
  });
  check_launch("apply_rotary");
}

}  // namespace d9d::kernels::detail
