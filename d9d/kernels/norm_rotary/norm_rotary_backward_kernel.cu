// Formula: with inv = rsqrt(mean(x^2) + eps) and g = grad_out rotated back:
//          grad_x = g * weight * inv - x * inv^3 * mean(g * weight * x), grad_weight = sum over heads of g * x * inv.
// Legend:  x one head of D channels, of queries or keys; inv is recomputed, not saved by the forward.
// Mapping: one block per multiprocessor; a group of threads, at most a warp, processes 2 heads of a token at a time, of
//          which a thread has one slot (heads_view.h) each; cp.async loads heads into shared memory 3 stages ahead.
//          add_partials: one block per 32 columns of a weight adds the blocks' partial sums.
// Numerics: fp32, rounded once; gradients of weights are summed per thread, then per block, then over blocks, in a
//          fixed order.
// Traffic: x and grad_out are read once, grad_x is written once; each block writes one partial sum of each weight.
#include <algorithm>

#include "d9d/kernels/device/cp_async.cuh"
#include "d9d/kernels/norm_rotary/norm_rotary_weights.cuh"

namespace d9d::kernels::detail {
namespace {

constexpr int kBlock = 512;  // threads; there is one block per multiprocessor
constexpr int kHeads = 2;    // of a thread group
constexpr int kStages = 3;   // stages of heads that are in flight to shared memory

// A ring of stages in shared memory. A thread reads only the pieces that it loaded itself.
class Ring {
 public:
  __device__ __forceinline__ explicit Ring(void* memory) : mine_(static_cast<uint4*>(memory) + threadIdx.x) {}
  __device__ __forceinline__ uint4* at(int stage, int source, int head, int piece) const {
    return mine_ + (((stage * 2 + source) * kHeads + head) * 2 + piece) * kBlock;
  }

 private:
  uint4* mine_;
};
constexpr unsigned kBytesOfRing = kStages * 2 * kHeads * 2 * kBlock * sizeof(uint4);

// Adds the sums of the block's groups in order, and writes one partial sum per column.
template <int W>
__device__ __forceinline__ void write_partial(const float (&sums)[2 * W], float* of_groups, const HeadGrid& grid,
                                              const HeadsShape& shape, bool is_interleaved, float* partial) {
  __syncthreads();
#pragma unroll
  for (int j = 0; j < 2 * W; ++j) of_groups[threadIdx.x * 2 * W + j] = sums[j];
  __syncthreads();
  const int numbers_of_group = grid.group * 2 * W;
  for (int i = static_cast<int>(threadIdx.x); i < grid.num_slots * 2 * W; i += kBlock) {
    const Channels channels = channels_of<W>(shape.head_dim, shape.rotary_dim, i / (2 * W), is_interleaved);
    const int j = i % (2 * W);
    if (j >= W && channels.second < 0) continue;
    float sum = 0;
#pragma unroll 8
    for (int group = 0; group < kBlock / grid.group; ++group) sum += of_groups[group * numbers_of_group + i];
    partial[j < W ? channels.first + j : channels.second + j - W] = sum;
  }
}

// Rotates the gradients back. `sums` gets the squares of x, and the products of the rotated gradient with weight * x.
template <class T, class Table, bool kIsInterleaved, int W = kWidth<T>>
__device__ __forceinline__ void rotate_back(const Packed<T, W> (&x)[kHeads][2], const Packed<T, W> (&grad)[kHeads][2],
                                            const TablePieces<Table, W>& cos, const TablePieces<Table, W>& sin,
                                            const float (&weights)[2 * W], float (&rotated)[kHeads][2 * W],
                                            float (&sums)[2 * kHeads]) {
#pragma unroll
  for (int j = 0; j < W; ++j) {
    const Pair<W, kIsInterleaved> at(j);
    const float cos_a = cos[at.a], cos_b = cos[at.b], sin_a = sin[at.a], sin_b = sin[at.b];
#pragma unroll
    for (int i = 0; i < kHeads; ++i) {
      const float grad_a = grad[i][at.a / W][at.a % W];
      const float grad_b = grad[i][at.b / W][at.b % W];
      rotated[i][at.a] = grad_a * cos_a + grad_b * sin_b;
      rotated[i][at.b] = grad_b * cos_b - grad_a * sin_a;
      const float x_a = x[i][at.a / W][at.a % W];
      const float x_b = x[i][at.b / W][at.b % W];
      sums[2 * i] += x_a * x_a;
      sums[2 * i] += x_b * x_b;
      sums[2 * i + 1] += rotated[i][at.a] * weights[at.a] * x_a;
      sums[2 * i + 1] += rotated[i][at.b] * weights[at.b] * x_b;
    }
  }
}

// The heads of x (source 0) or grad_out (source 1) from a stage of the ring.
template <class T, int W>
__device__ __forceinline__ void load_heads(const Ring& ring, int stage, int source, Packed<T, W> (&heads)[kHeads][2]) {
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
#pragma unroll
    for (int p = 0; p < 2; ++p) heads[i][p] = load_packed<T, W>(ring.at(stage, source, i, p));
  }
}

// Writes grad_x of a head that is there, if it is wanted, and adds the head's part of the gradients of the weights.
template <class T, int W>
__device__ __forceinline__ void write_head(Packed<T, W> (&x)[2], const float (&rotated)[2 * W],
                                           const float (&weights)[2 * W], const Channels& channels, float inv_rms,
                                           float mean_grad_dot_x, bool is_there, bool is_wanted, T* head,
                                           float (&grad_weights)[2 * W]) {
  const float x_coefficient = mean_grad_dot_x * inv_rms * inv_rms * inv_rms;
#pragma unroll
  for (int p = 0; p < 2; ++p) {
    keep_packed(x[p]);
    float grad_x[W];
#pragma unroll
    for (int j = 0; j < W; ++j) {
      const float scaled = rotated[p * W + j] * inv_rms;
      grad_weights[p * W + j] += scaled * x[p][j];
      grad_x[j] = scaled * weights[p * W + j] - x[p][j] * x_coefficient;
    }
    const int channel = p == 0 ? channels.first : channels.second;
    if (is_there && channel >= 0 && is_wanted) store_packed(pack<T>(grad_x), head + channel);
  }
}

// The groups of heads of a thread group: first, first + step, ...; num_steps is the same for all threads.
struct GroupSteps {
  unsigned first;
  unsigned step;
  unsigned num_steps;
};
__device__ __forceinline__ GroupSteps group_steps(const HeadGrid& grid, bool are_keys) {
  const unsigned groups_of_block = kBlock / grid.group;
  const unsigned step = pick(grid.num_blocks, are_keys) * groups_of_block;
  const unsigned first =
      (blockIdx.x - (are_keys ? grid.num_blocks[0] : 0)) * groups_of_block + threadIdx.x / grid.group;
  return {first, step, (pick(grid.num_groups, are_keys) + step - 1) / step};
}

// Starts the loads of a step's heads of x and grad_out into the ring. Missing heads become zeros.
template <class T>
__device__ __forceinline__ void fetch_heads(const HeadsShape& shape, const HeadGrid& grid, const HeadsView (&views)[2],
                                            bool are_keys, bool has_slot, const Channels& channels,
                                            const GroupSteps& steps, unsigned i_step, const Ring& ring) {
  const auto first_bytes = static_cast<unsigned>(channels.first * static_cast<int>(sizeof(T)));
  const auto second_bytes = static_cast<unsigned>(max(channels.second, 0) * static_cast<int>(sizeof(T)));
  const unsigned index = steps.first + i_step * steps.step;
  const int stage = static_cast<int>(i_step % kStages);
  if (i_step < steps.num_steps) {
    const HeadGroup group = head_group<kHeads>(pick(grid.groups_of_token, are_keys), index);
#pragma unroll
    for (int source = 0; source < 2; ++source) {
      const unsigned char* head = head_at(shape, grid, views[source], group);
#pragma unroll
      for (int i = 0; i < kHeads; ++i) {
        const bool is_there =
            has_slot && index < pick(grid.num_groups, are_keys) && group.head + i < pick(shape.num_heads, are_keys);
        cp_async(ring.at(stage, source, i, 0), head + first_bytes, is_there);
        cp_async(ring.at(stage, source, i, 1), head + second_bytes, is_there && channels.second >= 0);
        head += views[source].head_bytes;
      }
    }
  }
  cp_async_commit();
}

// Groups of heads are dealt to blocks in turn. A thread keeps the weights of its channels in registers, and the sums of
// their gradients over all heads.
template <class T, class Table, bool kIsInterleaved>
__global__ void __launch_bounds__(kBlock, 1)
    norm_rotary_backward(const NormRotaryBackwardArgs args, const HeadGrid grid) {
  pdl_wait_and_trigger();
  extern __shared__ __align__(16) unsigned char shared_memory[];
  constexpr int W = kWidth<T>;
  const NormRotaryInputs& inputs = args.inputs;
  const HeadsShape& shape = inputs.shape;
  const bool are_keys = blockIdx.x >= grid.num_blocks[0];
  const int num_heads = pick(shape.num_heads, are_keys);
  const unsigned num_groups = pick(grid.num_groups, are_keys);
  const Divisor groups_of_token = pick(grid.groups_of_token, are_keys);
  const int slot = static_cast<int>(threadIdx.x) % grid.group;
  const bool has_slot = slot < grid.num_slots;
  const Channels channels = channels_of<W>(shape.head_dim, shape.rotary_dim, has_slot ? slot : 0, kIsInterleaved);
  const Ring ring(shared_memory);
  const GroupSteps steps = group_steps(grid, are_keys);
  const HeadsView views[2] = {pick(inputs.x, are_keys), pick(args.grad_out, are_keys)};
  const auto fetch = [&](unsigned i_step) {
    fetch_heads<T>(shape, grid, views, are_keys, has_slot, channels, steps, i_step, ring);
  };
#pragma unroll
  for (unsigned i_step = 0; i_step < kStages; ++i_step) fetch(i_step);

  float weights[2 * W];
  load_weights<T, W>(inputs, pick(inputs.weight, are_keys), channels, weights);
  auto* const grad_x_data = static_cast<T*>(pick(args.grad_x, are_keys));
  const std::uint32_t grad_x_stride = pick(args.grad_x_stride, are_keys);
  float grad_weights[2 * W] = {};
  const float inv_n = __frcp_rn(static_cast<float>(shape.head_dim));
  const auto eps = static_cast<float>(inputs.eps);
  for (unsigned i_step = 0; i_step < steps.num_steps; ++i_step) {
    const unsigned index = steps.first + i_step * steps.step;
    const int stage = static_cast<int>(i_step % kStages);
    const HeadGroup group = head_group<kHeads>(groups_of_token, min(index, num_groups - 1));
    TablePieces<Table, W> cos;
    TablePieces<Table, W> sin;
    load_tables(shape, inputs.cos, inputs.sin, table_row_of(shape, grid, group.token), channels, cos, sin);
    cp_async_wait<kStages - 1>();

    float rotated[kHeads][2 * W];
    float sums[2 * kHeads] = {};  // of squares, and of products with the gradient
    Packed<T, W> x[kHeads][2];
    Packed<T, W> grad[kHeads][2];
    load_heads(ring, stage, 0, x);
    load_heads(ring, stage, 1, grad);
    rotate_back<T, Table, kIsInterleaved>(x, grad, cos, sin, weights, rotated, sums);
    lane_group_sums(sums, grid.group);
#pragma unroll
    for (int i = 0; i < kHeads; ++i) {
      const bool is_there = has_slot && index < num_groups && group.head + i < num_heads;
      T* const head =
          grad_x_data + static_cast<std::uint64_t>(group.token) * grad_x_stride + (group.head + i) * shape.head_dim;
      write_head<T>(x[i], rotated[i], weights, channels, rsqrtf(sums[2 * i] * inv_n + eps), sums[2 * i + 1] * inv_n,
                    is_there, grad_x_data != nullptr, head, grad_weights);
    }
    fetch(i_step + kStages);
  }
  if (args.partials == nullptr) return;
  cp_async_wait<0>();
  write_partial<W>(grad_weights, reinterpret_cast<float*>(shared_memory), grid, shape, kIsInterleaved,
                   args.partials + blockIdx.x * shape.head_dim);
}

// One block per 32 columns of one of the two weights: warp w adds partials w, w + kWarpsOfSum, ..., then the first warp
// adds the warps' sums.
constexpr int kWarpsOfSum = 4;

template <class Weight>
__global__ void __launch_bounds__(kWarpSize* kWarpsOfSum)
    add_partials(const NormRotaryBackwardArgs args, const HeadGrid grid) {
  pdl_wait_and_trigger();
  __shared__ float warp_sums[kWarpsOfSum][kWarpSize];
  const unsigned blocks_of_weight = gridDim.x / 2;
  const unsigned which = blockIdx.x / blocks_of_weight;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int column = static_cast<int>(blockIdx.x % blocks_of_weight) * kWarpSize + lane;
  void* const grad_weight = pick(args.grad_weight, which == 1);
  const bool is_mine = column < args.inputs.shape.head_dim && grad_weight != nullptr;
  const unsigned first = which == 0 ? 0 : grid.num_blocks[0];
  constexpr int kPartialsOfWarp = (kNormRotaryPartials + kWarpsOfSum - 1) / kWarpsOfSum;
  float read[kPartialsOfWarp] = {};  // all loads are in flight together
#pragma unroll
  for (int i = 0; i < kPartialsOfWarp; ++i) {
    const unsigned partial = i * kWarpsOfSum + warp;
    if (is_mine && partial < pick(grid.num_blocks, which == 1))
      read[i] = args.partials[(first + partial) * args.inputs.shape.head_dim + column];
  }
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kPartialsOfWarp; ++i) sum += read[i];
  warp_sums[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || !is_mine) return;
  for (int other = 1; other < kWarpsOfSum; ++other) sum += warp_sums[other][lane];
  static_cast<Weight*>(grad_weight)[column] = static_cast<Weight>(sum);
}

// Divides the blocks between queries and keys in proportion to their groups of heads. Each that has groups gets at
// least one block.
void divide_blocks(HeadGrid& grid) {
  const auto total = static_cast<unsigned>(kNormRotaryPartials);
  const std::uint64_t all = std::uint64_t{grid.num_groups[0]} + grid.num_groups[1];
  const auto inv_n = static_cast<unsigned>((total * std::uint64_t{grid.num_groups[0]} + all / 2) / all);
  const unsigned of_first =
      std::clamp(inv_n, std::min(grid.num_groups[0], 1U), total - std::min(grid.num_groups[1], 1U));
  const unsigned groups_of_block = kBlock / static_cast<unsigned>(grid.group);
  grid.num_blocks[0] = std::min(num_blocks(grid.num_groups[0], groups_of_block), of_first);
  grid.num_blocks[1] = std::min(num_blocks(grid.num_groups[1], groups_of_block), total - of_first);
}

}  // namespace

void d9d_launch_norm_rotary_backward(const NormRotaryBackwardArgs& args, CUstream_st* stream) {
  HeadGrid grid;
  with_head_types(args.inputs.dtype, args.inputs.table_dtype, args.inputs.is_interleaved,
                  [&]<class T, class Table, bool kIsInterleaved>() {
                    grid = head_grid<kHeads>(args.inputs.shape, kWidth<T>);
                    divide_blocks(grid);
                    launch_pdl(norm_rotary_backward<T, Table, kIsInterleaved>,
                               {.num_blocks = grid.size(), .block = kBlock, .shared_bytes = kBytesOfRing}, stream, args,
                               grid);
                  });
  check_launch("norm_rotary");
  if (args.partials == nullptr) return;
  with_element_type(args.inputs.weight_dtype, [&]<class Weight>(Element<Weight>) {
    launch_pdl(add_partials<Weight>, {2 * num_blocks(args.inputs.shape.head_dim, kWarpSize), kWarpSize * kWarpsOfSum},
               stream, args, grid);
  });
  check_launch("norm_rotary");
}

}  // namespace d9d::kernels::detail
