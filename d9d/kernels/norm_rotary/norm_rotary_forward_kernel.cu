#include "d9d/kernels/norm_rotary/head_groups.cuh"

// With inv = rsqrt(mean(x^2) + eps) and f the factors, channels a and b that turn with each other become
//
//   out_a = y_a * cos_a - y_b * sin_a      out_b = y_b * cos_b + y_a * sin_b      y = x * inv * f
namespace d9d::kernels::detail {
namespace {

constexpr int kBlock = 256;
constexpr int kHeads = 4;  // of a thread group

template <class T, class Table, bool kIsInterleaved>
__global__ void __launch_bounds__(kBlock, 2)
    norm_rotary_forward(const NormRotaryForwardArgs args, const HeadGrid grid) {
  wait_for_kernel_before();
  constexpr int W = kWidth<T>;
  const NormRotaryInputs& inputs = args.inputs;
  const int which = blockIdx.x < grid.num_blocks[0] ? 0 : 1;
  const int num_heads = inputs.num_heads[which];
  const unsigned index =
      (blockIdx.x - (which == 0 ? 0 : grid.num_blocks[0])) * (kBlock / grid.group) + threadIdx.x / grid.group;
  const int slot = static_cast<int>(threadIdx.x) % grid.group;
  // Threads without work do that of others and keep silent about it: loads need no branches then.
  const HeadGroup group = head_group<kHeads>(inputs, num_heads, min(index, grid.num_groups[which] - 1));
  const Channels channels =
      channels_of<W>(inputs.head_dim, inputs.rotary_dim, slot < grid.num_slots ? slot : 0, kIsInterleaved);
  const int second = channels.second < 0 ? channels.first : channels.second;
  const bool is_turning = channels.first < inputs.rotary_dim;

  Packed<T, W> x[kHeads][2];
  const T* const heads = heads_of<T>(inputs.x[which], group);
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    const T* const head = heads + min(group.head + i, num_heads - 1) * inputs.x[which].head_stride;
    x[i][0] = load_packed<T, W>(head + channels.first);
    x[i][1] = load_packed<T, W>(head + second);
  }
  const std::uint64_t table_row =
      static_cast<std::uint64_t>(inputs.num_table_rows == inputs.num_tokens ? group.token : group.position) *
      static_cast<unsigned>(inputs.rotary_dim);
  auto cos = load_table<Table, W>(inputs.cos, table_row, channels, is_turning);
  auto sin = load_table<Table, W>(inputs.sin, table_row, channels, is_turning);
  fill_unless(is_turning, cos, 1.0F);
  fill_unless(is_turning, sin, 0.0F);

  float squares[kHeads] = {};
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    keep_packed(x[i][0]);  // nothing waits for these before the tables are on their way too
    keep_packed(x[i][1]);
    if (slot >= grid.num_slots) clear(x[i][0]);
    if (slot >= grid.num_slots || channels.second < 0) clear(x[i][1]);
#pragma unroll
    for (int j = 0; j < 2 * W; ++j) squares[i] += x[i][j / W][j % W] * x[i][j / W][j % W];
  }
  sum_over_group(squares, grid.group);
  if (index >= grid.num_groups[which] || slot >= grid.num_slots) return;
  float factors[2 * W];  // later than the rest: they are in the nearest cache
  load_factors<T, W>(inputs, inputs.weight[which], channels, factors);
  const float share = __frcp_rn(static_cast<float>(inputs.head_dim));

#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    if (group.head + i >= num_heads) return;
#pragma unroll
    for (int p = 0; p < 2; ++p) {
      keep_packed(x[i][p]);
      keep_packed(cos.piece[p]);
      keep_packed(sin.piece[p]);
    }
    const float inv_rms = rsqrtf(squares[i] * share + static_cast<float>(inputs.eps));
    float out[2][W];
#pragma unroll
    for (int j = 0; j < W; ++j) {
      const Pair<W, kIsInterleaved> at(j);
      const float y_a = x[i][at.a / W][at.a % W] * inv_rms * factors[at.a];
      const float y_b = x[i][at.b / W][at.b % W] * inv_rms * factors[at.b];
      out[at.a / W][at.a % W] = y_a * cos[at.a] - y_b * sin[at.a];
      out[at.b / W][at.b % W] = y_b * cos[at.b] + y_a * sin[at.b];
    }
    T* const head = static_cast<T*>(args.out[which]) +
                    (static_cast<std::uint64_t>(group.token) * num_heads + group.head + i) * inputs.head_dim;
    store_packed(pack<T>(out[0]), head + channels.first);
    if (channels.second >= 0) store_packed(pack<T>(out[1]), head + channels.second);
  }
}

}  // namespace

void launch_norm_rotary_forward(const NormRotaryForwardArgs& args, CUstream_st* stream) {
  with_norm_rotary_types(args.inputs, [&]<class T, class Table, bool kIsInterleaved>() {
    HeadGrid grid = head_grid<kHeads>(args.inputs, kWidth<T>);
    for (int i = 0; i < 2; ++i) grid.num_blocks[i] = num_blocks(grid.num_groups[i], kBlock / grid.group);
    launch_after(norm_rotary_forward<T, Table, kIsInterleaved>, {grid.size(), kBlock}, stream, args, grid);
  });
  check_launch("norm_rotary");
}

}  // namespace d9d::kernels::detail
