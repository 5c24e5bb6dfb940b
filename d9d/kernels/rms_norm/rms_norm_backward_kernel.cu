// Formula: with inv = rsqrt(mean(x^2) + eps): grad_weight = sum over rows of grad * x * inv,
//          grad_x = grad * weight * inv - x * inv^3 * mean(grad * weight * x), plus grad_sum if there is one.
// Legend:  means are over the N columns of a row; inv is recomputed, not saved by the forward; grad_sum is the gradient
//          that arrives through a residual connection.
// Mapping: backward_in_registers: one block per multiprocessor; a group of threads (rms_norm_rows.cuh) processes whole
//          rows, which cp.async loads into shared memory some stages ahead. add_partials: one block per 32 columns
//          adds the blocks' partial sums of grad_weight.
// Numerics: fp32, rounded once; grad_weight is summed per thread, then per block, then over blocks, in a fixed order.
// Traffic: x and grad are read once, grad_x is written once; each block writes one partial sum per column.
#include <algorithm>

#include "d9d/kernels/device/cp_async.cuh"
#include "d9d/kernels/device/launch.cuh"
#include "d9d/kernels/device/vector.cuh"
#include "d9d/kernels/rms_norm/rms_norm_kernel.h"
#include "d9d/kernels/rms_norm/rms_norm_rows.cuh"

namespace d9d::kernels::detail {
namespace {

// Vectors of 16 bytes of the longest row; rms_norm_backward_long_rows_kernel.cu takes longer ones.
constexpr std::int64_t kMostVectors = 128;

// There is one block per multiprocessor. While a group computes on rows, loads of the following rows into shared memory
// are in flight, for as many stages as fit, up to 4.
template <class Group>
constexpr int kBlockOf = Group::kVectors == 1 ? 768 : 512;
constexpr unsigned kBytesOfRing = 192 * 1024;
template <class T, class Group, bool kAdds>
constexpr unsigned kBytesOfStage = (kAdds ? 3 : 2) * kBlockOf<Group>* Group::kRows* Group::kVectors * sizeof(Vec16<T>);
template <class T, class Group, bool kAdds>
constexpr int kStagesOf = static_cast<int>(std::min(kBytesOfRing / kBytesOfStage<T, Group, kAdds>, 4U));

// A ring of stages in shared memory. A thread reads only the vectors that it loaded itself.
template <class T, class Group, int kSources>
class Ring {
 public:
  __device__ __forceinline__ explicit Ring(void* memory) : mine_(static_cast<Vec16<T>*>(memory) + threadIdx.x) {}

  __device__ __forceinline__ Vec16<T>& at(int stage, int source, int row, int vector) const {
    return mine_[(((stage * kSources + source) * Group::kRows + row) * Group::kVectors + vector) * kBlockOf<Group>];
  }

 private:
  Vec16<T>* mine_;
};

// Adds the sums of the block's groups in order, and writes one partial sum per column.
template <class T, class Group>
__device__ __forceinline__ void write_partials(const float (&sums)[Group::kVectors][kWidth<T>], float* group_sums,
                                               float* partial, std::int64_t num_columns) {
  constexpr int W = kWidth<T>;
  constexpr int kColumns = Group::kThreads * W;  // columns that vectors v of a group's threads cover
  constexpr int kGroups = kBlockOf<Group> / Group::kThreads;
#pragma unroll
  for (int v = 0; v < Group::kVectors; ++v) {
    __syncthreads();
#pragma unroll
    for (int j = 0; j < W; ++j) group_sums[threadIdx.x * W + j] = sums[v][j];
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < kColumns && v * kColumns + i < num_columns; i += kBlockOf<Group>) {
      float sum = 0;
#pragma unroll 16
      for (int group = 0; group < kGroups; ++group) sum += group_sums[group * kColumns + i];
      partial[v * kColumns + i] = sum;
    }
  }
}

// Adds x^2 to `squares` and grad * weight * x to `products`.
template <class T>
__device__ __forceinline__ void add_products(const Vec16<T>& x, const Vec16<T>& grad, const float (&weights)[kWidth<T>],
                                             float& squares, float& products) {
  float squares_of_vec = 0;  // summed per vector, for short chains of dependent additions
  float products_of_vec = 0;
#pragma unroll
  for (int j = 0; j < kWidth<T>; ++j) {
    const float value = widen(x.value[j]);
    squares_of_vec += value * value;
    products_of_vec += widen(grad.value[j]) * weights[j] * value;
  }
  squares += squares_of_vec;
  products += products_of_vec;
}

// The rows and columns of a thread, and the loads of them into the ring.
template <class T, class Group, bool kAdds>
struct Tile {
  static constexpr int kGroups = kBlockOf<Group> / Group::kThreads;

  const RmsNormBackwardArgs& args;
  int thread;  // of its group
  int group;
  Ring<T, Group, kAdds ? 3 : 2> ring;

  __device__ __forceinline__ std::int64_t row(std::int64_t first_row, int i) const {
    return first_row + i * kGroups + group;
  }
  __device__ __forceinline__ int column(int v) const { return column_of<Group, T>(thread, v); }
  __device__ __forceinline__ bool is_mine(std::int64_t row, int v) const {
    return row < args.num_rows && column(v) < args.num_columns;
  }

  // Rows beyond the last become zeros.
  __device__ __forceinline__ void fetch(std::int64_t first_row, int stage) const {
    if (first_row < args.num_rows) {
      fetch_source(first_row, stage, 0, args.x, args.x_rows);
      fetch_source(first_row, stage, 1, args.grad_out, args.grad_out_rows);
      if constexpr (kAdds) fetch_source(first_row, stage, 2, args.grad_sum, args.grad_sum_rows);
    }
    cp_async_commit();
  }
  __device__ __forceinline__ void fetch_source(std::int64_t first_row, int stage, int source, const void* data,
                                               const StridedRows& rows) const {
#pragma unroll
    for (int i = 0; i < Group::kRows; ++i) {
      const T* const begin = static_cast<const T*>(data) + row_offset(rows, row(first_row, i));
#pragma unroll
      for (int v = 0; v < Group::kVectors; ++v)
        cp_async(&ring.at(stage, source, i, v), begin + column(v), is_mine(row(first_row, i), v));
    }
  }
};

// Rows are dealt to blocks in turn. A thread keeps the weights of its columns in registers, and the sums of their
// gradients over all rows. The kernel is limited by memory and by the number of instructions.
template <class T, class Weight, class Group, bool kAdds>
__global__ void __launch_bounds__(kBlockOf<Group>, 1) backward_in_registers(const RmsNormBackwardArgs args) {
  pdl_wait_and_trigger();
  extern __shared__ __align__(16) unsigned char shared_memory[];
  constexpr int kRows = Group::kRows;
  constexpr int kVectors = Group::kVectors;
  constexpr int W = kWidth<T>;
  constexpr int kStages = kStagesOf<T, Group, kAdds>;
  const Tile<T, Group, kAdds> tile{.args = args,
                                   .thread = static_cast<int>(threadIdx.x) % Group::kThreads,
                                   .group = static_cast<int>(threadIdx.x) / Group::kThreads,
                                   .ring = Ring < T,
                                   Group,
                                   kAdds ? 3 : 2 > (shared_memory)};
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * tile.kGroups * kRows;
  std::int64_t block_row = static_cast<std::int64_t>(blockIdx.x) * tile.kGroups * kRows;
  for (int stage = 0; stage < kStages; ++stage) tile.fetch(block_row + stage * step, stage);

  float weights[kVectors][W] = {};
  float grad_weights[kVectors][W] = {};
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (tile.column(v) >= args.num_columns) continue;
    const auto loaded = load_vec<Weight, W>(args.weight, tile.column(v));
#pragma unroll
    for (int j = 0; j < W; ++j) weights[v][j] = widen(loaded.value[j]) + (args.zero_centered ? 1.0F : 0.0F);
  }
  const float inv_n = 1.0F / static_cast<float>(args.num_columns);
  const auto eps = static_cast<float>(args.eps);
  int parity = 0;
  for (int stage = 0; block_row < args.num_rows; block_row += step, stage = (stage + 1) % kStages, parity ^= 1) {
    cp_async_wait<kStages - 1>();
    float sums[2 * kRows] = {};  // of squares, and of products with the gradient
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const Vec16<T> x = tile.ring.at(stage, 0, i, v);
        const Vec16<T> grad = tile.ring.at(stage, 1, i, v);
        add_products(x, grad, weights[v], sums[2 * i], sums[2 * i + 1]);
      }
    }
    thread_group_sums<Group::kThreads, kBlockOf<Group>>(sums, parity);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const std::int64_t row = tile.row(block_row, i);
      const float inv_rms = row < args.num_rows ? rsqrtf(sums[2 * i] * inv_n + eps) : 0.0F;
      const float mean_grad_dot_x = sums[2 * i + 1] * inv_n;
      const float x_coefficient = mean_grad_dot_x * inv_rms * inv_rms * inv_rms;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const Vec16<T> x = tile.ring.at(stage, 0, i, v);
        const Vec16<T> grad = tile.ring.at(stage, 1, i, v);
        Vec16<T> grad_x;  // before the loop: what is added to it
        if constexpr (kAdds) grad_x = tile.ring.at(stage, 2, i, v);
#pragma unroll
        for (int j = 0; j < W; ++j)
          grad_x.value[j] = backward_of_element<kAdds>(x.value[j], grad.value[j], grad_x.value[j], weights[v][j],
                                                       inv_rms, x_coefficient, grad_weights[v][j]);
        if (tile.is_mine(row, v) && args.grad_x != nullptr)
          store_vec(grad_x, args.grad_x, row * args.num_columns + tile.column(v));
      }
    }
    tile.fetch(block_row + kStages * step, stage);
  }
  if (args.partials == nullptr) return;
  cp_async_wait<0>();
  write_partials<T, Group>(grad_weights, reinterpret_cast<float*>(shared_memory),
                           static_cast<float*>(args.partials) + blockIdx.x * args.num_columns, args.num_columns);
}

constexpr int kWarpsOfSum = 16;

// One block per 32 columns: warp w adds partials w, w + 16, ..., then the first warp adds the warps' sums.
template <class A, class Weight>
__global__ void __launch_bounds__(kWarpSize* kWarpsOfSum)
    add_partials(const A* partials, unsigned num_partials, std::int64_t num_columns, Weight* grad_weight) {
  pdl_wait_and_trigger();
  __shared__ A warp_sums[kWarpsOfSum][kWarpSize];
  const unsigned warp = threadIdx.x / kWarpSize;
  const unsigned lane = threadIdx.x % kWarpSize;
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kWarpSize + lane;
  constexpr int kPartialsOfWarp = (kRmsNormPartials + kWarpsOfSum - 1) / kWarpsOfSum;
  A read[kPartialsOfWarp] = {};  // all loads are in flight together
#pragma unroll
  for (int i = 0; i < kPartialsOfWarp; ++i) {
    const unsigned partial = i * kWarpsOfSum + warp;
    if (partial < num_partials && column < num_columns) read[i] = partials[partial * num_columns + column];
  }
  A sum = 0;
#pragma unroll
  for (int i = 0; i < kPartialsOfWarp; ++i) sum += read[i];
  warp_sums[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || column >= num_columns) return;
  for (int other = 1; other < kWarpsOfSum; ++other) sum += warp_sums[other][lane];
  grad_weight[column] = static_cast<Weight>(sum);
}

void launch_add_partials(const RmsNormBackwardArgs& args, unsigned num_partials, CUstream_st* stream) {
  const auto launch = [&]<class A>(Element<A>) {
    with_element_type(args.weight_dtype, [&]<class Weight>(Element<Weight>) {
      launch_pdl(add_partials<A, Weight>, {num_blocks(args.num_columns, kWarpSize), kWarpSize * kWarpsOfSum}, stream,
                 static_cast<const A*>(args.partials), num_partials, args.num_columns,
                 static_cast<Weight*>(args.grad_weight));
    });
  };
  args.dtype == Dtype::kFloat64 ? launch(Element<double>()) : launch(Element<float>());
}

// Returns the number of blocks that it launched. Launches nothing and returns 0 for types without a kernel, unaligned
// rows, and rows that do not fit into registers.
unsigned launch_aligned(const RmsNormBackwardArgs& args, CUstream_st* stream) {
  unsigned blocks = 0;
  with_common_types(args.dtype, args.weight_dtype, [&]<class T, class Weight>() {
    const auto is_row_aligned = [&](const void* data, const StridedRows& rows) {
      return is_aligned(data, rows, args.num_columns, sizeof(T));
    };
    if (!is_row_aligned(args.x, args.x_rows) || !is_row_aligned(args.grad_out, args.grad_out_rows)) return;
    if (args.grad_sum != nullptr && !is_row_aligned(args.grad_sum, args.grad_sum_rows)) return;
    if (!is_aligned(args.weight)) return;
    const std::int64_t num_vectors = args.num_columns / kWidth<T>;
    if (num_vectors > kMostVectors) {
      blocks = launch_rms_norm_backward_of_long_rows(args, stream);
      return;
    }
    with_row_group(num_vectors, [&]<class Group>(Group) {
      constexpr int kRowsAtOnce = kBlockOf<Group> / Group::kThreads * Group::kRows;
      blocks = std::min(num_blocks(args.num_rows, kRowsAtOnce), static_cast<unsigned>(kRmsNormPartials / 2));
      const auto launch = [&]<bool kAdds>(std::bool_constant<kAdds>) {
        launch_pdl(backward_in_registers<T, Weight, Group, kAdds>,
                   {.num_blocks = blocks,
                    .block = kBlockOf<Group>,
                    .shared_bytes = kStagesOf<T, Group, kAdds> * kBytesOfStage<T, Group, kAdds>},
                   stream, args);
      };
      args.grad_sum == nullptr ? launch(std::false_type()) : launch(std::true_type());
    });
  });
  return blocks;
}

}  // namespace

void d9d_launch_rms_norm_backward(const RmsNormBackwardArgs& args, CUstream_st* stream) {
  unsigned blocks = launch_aligned(args, stream);
  if (blocks == 0) blocks = launch_rms_norm_backward_of_any_row(args, stream);
  check_launch("rms_norm");
  if (args.partials == nullptr) return;
  launch_add_partials(args, blocks, stream);
  check_launch("rms_norm");
}

}  // namespace d9d::kernels::detail
