// Formula: y = x * rsqrt(mean(x^2) + eps) * weight, out_a = y_a cos_a - y_b sin_a, out_b = y_b cos_b + y_a sin_b.
// Legend:  x one head of D channels, of queries or keys; channels a and b are rotated with each other.
// Mapping: a group of threads, at most a warp, processes 4 heads of a token; a thread has one slot (heads_view.h) of
//          each.
// Numerics: fp32, rounded once; the order of the sum over a head is fixed.
// Traffic: queries and keys are read once and written once; a token's tables are read once for 4 heads.
#include "d9d/kernels/norm_rotary/norm_rotary_weights.cuh"

namespace d9d::kernels::detail {
namespace {

constexpr int kBlock = 128;
constexpr int kHeads = 4;  // of a thread group

// The channels of a head after norm and rotation, as two vectors.
template <class T, class Table, bool kIsInterleaved, int W = kWidth<T>>
__device__ __forceinline__ void rotate(const Packed<T, W> (&x)[2], float inv_rms, const float (&weights)[2 * W],
                                       const TablePieces<Table, W>& cos, const TablePieces<Table, W>& sin,
                                       float (&out)[2][W]) {
#pragma unroll
  for (int j = 0; j < W; ++j) {
    const Pair<W, kIsInterleaved> at(j);
    const float y_a = x[at.a / W][at.a % W] * inv_rms * weights[at.a];
    const float y_b = x[at.b / W][at.b % W] * inv_rms * weights[at.b];
    out[at.a / W][at.a % W] = y_a * cos[at.a] - y_b * sin[at.a];
    out[at.b / W][at.b % W] = y_b * cos[at.b] + y_a * sin[at.b];
  }
}

template <class T, class Table, bool kIsInterleaved>
__global__ void __launch_bounds__(kBlock, 4)
    norm_rotary_forward(const NormRotaryForwardArgs args, const HeadGrid grid) {
  pdl_wait_and_trigger();
  constexpr int W = kWidth<T>;
  const NormRotaryInputs& inputs = args.inputs;
  const HeadsShape& shape = inputs.shape;
  const bool are_keys = blockIdx.x >= grid.num_blocks[0];
  const int num_heads = pick(shape.num_heads, are_keys);
  const unsigned num_groups = pick(grid.num_groups, are_keys);
  const unsigned index =
      (blockIdx.x - (are_keys ? grid.num_blocks[0] : 0)) * (kBlock / grid.group) + threadIdx.x / grid.group;
  const int slot = static_cast<int>(threadIdx.x) % grid.group;
  // Threads without work load what other threads load and store nothing, so that loads need no branches.
  const HeadGroup group = head_group<kHeads>(pick(grid.groups_of_token, are_keys), min(index, num_groups - 1));
  const Channels channels =
      channels_of<W>(shape.head_dim, shape.rotary_dim, slot < grid.num_slots ? slot : 0, kIsInterleaved);
  const int second = channels.second < 0 ? channels.first : channels.second;

  Packed<T, W> x[kHeads][2];
  const HeadsView view = pick(inputs.x, are_keys);
  const unsigned char* const heads = head_at(shape, grid, view, group);
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    const T* const head = reinterpret_cast<const T*>(
        heads + static_cast<std::uint64_t>(min(i, num_heads - 1 - group.head)) * view.head_bytes);
    x[i][0] = load_packed_from_global<T, W>(head + channels.first);
    x[i][1] = load_packed_from_global<T, W>(head + second);
  }
  TablePieces<Table, W> cos;
  TablePieces<Table, W> sin;
  load_tables(shape, inputs.cos, inputs.sin, table_row_of(shape, grid, group.token), channels, cos, sin);

  float squares[kHeads] = {};
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    keep_packed(x[i][0]);  // keeps uses of x after the table loads, so that all loads are in flight together
    keep_packed(x[i][1]);
    if (slot >= grid.num_slots) clear(x[i][0]);
    if (slot >= grid.num_slots || channels.second < 0) clear(x[i][1]);
#pragma unroll
    for (int j = 0; j < 2 * W; ++j) squares[i] += x[i][j / W][j % W] * x[i][j / W][j % W];
  }
  lane_group_sums(squares, grid.group);
  if (index >= num_groups || slot >= grid.num_slots) return;
  float weights[2 * W];  // loaded last, because they are in the L1 cache
  load_weights<T, W>(inputs, pick(inputs.weight, are_keys), channels, weights);
  const float inv_n = __frcp_rn(static_cast<float>(shape.head_dim));

#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    if (group.head + i >= num_heads) return;
#pragma unroll
    for (int p = 0; p < 2; ++p) {
      keep_packed(x[i][p]);
      keep_packed(cos.piece[p]);
      keep_packed(sin.piece[p]);
    }
    const float inv_rms = rsqrtf(squares[i] * inv_n + static_cast<float>(inputs.eps));
    float out[2][W];
    rotate<T, Table, kIsInterleaved>(x[i], inv_rms, weights, cos, sin, out);
    T* const head = static_cast<T*>(pick(args.out, are_keys)) +
                    (static_cast<std::uint64_t>(group.token) * num_heads + group.head + i) * shape.head_dim;
    store_packed(pack<T>(out[0]), head + channels.first);
    if (channels.second >= 0) store_packed(pack<T>(out[1]), head + channels.second);
  }
}

}  // namespace

void d9d_launch_norm_rotary_forward(const NormRotaryForwardArgs& args, CUstream_st* stream) {
  with_head_types(
      args.inputs.dtype, args.inputs.table_dtype, args.inputs.is_interleaved,
      [&]<class T, class Table, bool kIsInterleaved>() {
        HeadGrid grid = head_grid<kHeads>(args.inputs.shape, kWidth<T>);
        for (int i = 0; i < 2; ++i) grid.num_blocks[i] = num_blocks(grid.num_groups[i], kBlock / grid.group);
        launch_pdl(norm_rotary_forward<T, Table, kIsInterleaved>, {grid.size(), kBlock}, stream, args, grid);
      });
  check_launch("norm_rotary");
}

}  // namespace d9d::kernels::detail
