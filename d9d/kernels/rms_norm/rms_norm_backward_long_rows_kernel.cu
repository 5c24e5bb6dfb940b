// Formula: as rms_norm_backward_kernel.cu.
// Legend:  rows of more than 128 vectors of 16 bytes, aligned to 16 bytes.
// Mapping: a block processes whole rows; a thread has the same columns of all of them, and keeps their weights and sums
//          of weight gradients in registers. TMA loads rows into shared memory two stages ahead.
// Numerics: fp32, rounded once; the order of all sums depends only on sizes.
// Traffic: x and grad are read once, grad_x is written once; each block writes one partial sum per column.
#include <algorithm>

#include "d9d/kernels/device/launch.cuh"
#include "d9d/kernels/device/tma.cuh"
#include "d9d/kernels/device/vector.cuh"
#include "d9d/kernels/rms_norm/rms_norm_kernel.h"
#include "d9d/kernels/rms_norm/rms_norm_rows.cuh"

// Only a few rows per block are in flight to shared memory: with more, some multiprocessors get less than their share
// of the memory bandwidth and end late.
namespace d9d::kernels::detail {
namespace {

constexpr int kStages = 2;

// The shape of a kernel: threads of a block, 16-byte vectors that a thread has of a row, and rows of a step.
template <int kThreadsOfBlock, int kVectorsOfThread, int kRowsOfStep>
struct Rows {
  static constexpr int kThreads = kThreadsOfBlock;
  static constexpr int kVectors = kVectorsOfThread;
  static constexpr int kRows = kRowsOfStep;
  static constexpr int kBlocks = 512 / kThreadsOfBlock;  // per multiprocessor
};

template <class Function>
bool with_rows(std::int64_t num_vectors, const Function& function) {
  if (num_vectors <= 256) return function(Rows<256, 1, 2>()), true;
  if (num_vectors <= 512) return function(Rows<512, 1, 2>()), true;
  if (num_vectors <= 1024) return function(Rows<512, 2, 1>()), true;
  if (num_vectors <= 2048) return function(Rows<512, 4, 1>()), true;
  return false;
}

// Divides rows among blocks. In each full step a block has rows_of_step rows; in the last step all blocks have the same
// number, or one more.
struct RowSteps {
  int rows_of_step;    // per block, in a full step
  int num_full;        // number of full steps
  int rows_of_last;    // per block, in the last step
  int one_more_until;  // blocks before this one have one row more in the last step

  static RowSteps of(std::int64_t num_rows, std::int64_t num_blocks, int rows_of_step) {
    const std::int64_t left = num_rows % (num_blocks * rows_of_step);
    return {.rows_of_step = rows_of_step,
            .num_full = static_cast<int>(num_rows / (num_blocks * rows_of_step)),
            .rows_of_last = static_cast<int>(left / num_blocks),
            .one_more_until = static_cast<int>(left % num_blocks)};
  }

  // The number of rows of this block in a step, and the first of them.
  [[nodiscard]] __device__ __forceinline__ int num_rows(int step) const {
    const int block = static_cast<int>(blockIdx.x);
    if (step < num_full) return rows_of_step;
    return step == num_full ? rows_of_last + (block < one_more_until ? 1 : 0) : 0;
  }
  [[nodiscard]] __device__ __forceinline__ std::int64_t first_row(int step) const {
    const int block = static_cast<int>(blockIdx.x);
    const std::int64_t first_of_step = static_cast<std::int64_t>(step) * gridDim.x * rows_of_step;
    if (step < num_full) return first_of_step + block * rows_of_step;
    return first_of_step + block * rows_of_last + min(block, one_more_until);
  }
};

template <class T, class R, bool kAdds>
constexpr unsigned kBytesOfStage = (kAdds ? 3 : 2) * R::kRows* R::kVectors* R::kThreads * sizeof(Vec16<T>);

// The columns of a thread, and the rows of its block, which the ring holds in shared memory.
template <class T, class R, bool kAdds>
struct Tile {
  static constexpr int kSources = kAdds ? 3 : 2;

  const RmsNormBackwardArgs& args;
  const RowSteps& steps;
  Vec16<T>* ring;  // [kStages, kSources, kRows, kVectors, kThreads]
  Mbarrier (&full)[kStages];
  int thread;
  std::uint32_t row_bytes;

  __device__ __forceinline__ Vec16<T>* at(int stage, int source, int row) const {
    return ring + ((stage * kSources + source) * R::kRows + row) * R::kVectors * R::kThreads;
  }
  __device__ __forceinline__ int column(int v) const { return (v * R::kThreads + thread) * kWidth<T>; }
  __device__ __forceinline__ bool is_mine(int v) const { return column(v) < args.num_columns; }

  // Waits for the previous kernel and starts the loads of the first steps. x is the forward's input, which the previous
  // kernel does not write. So its first rows may be prefetched into L2 while that kernel still runs.
  __device__ __forceinline__ void start() const {
    if (thread < kStages * R::kRows && thread % R::kRows < steps.num_rows(thread / R::kRows)) {
      const std::int64_t row = steps.first_row(thread / R::kRows) + thread % R::kRows;
      tma_prefetch_1d(static_cast<const T*>(args.x) + row_offset(args.x_rows, row), row_bytes);
    }
    if (thread == 0) {
      for (Mbarrier& barrier : full) mbarrier_init(barrier, 1);
      fence_mbarrier_init();
    }
    __syncthreads();
    pdl_wait_and_trigger();
    if (thread < kWarpSize)
      for (int stage = 0; stage < kStages; ++stage) fetch(stage, stage);
  }

  // The first warp calls it; each lane loads one row of one source.
  __device__ __forceinline__ void fetch(int step, int stage) const {
    const int num_rows = steps.num_rows(step);
    if (thread == 0) mbarrier_arrive_expect_tx(full[stage], kSources * num_rows * row_bytes);
    __syncwarp();
    const int source = thread / R::kRows;
    const int i = thread % R::kRows;
    if (source >= kSources || i >= num_rows) return;
    const void* const data = source == 0 ? args.x : source == 1 ? args.grad_out : args.grad_sum;
    const StridedRows& rows = source == 0 ? args.x_rows : source == 1 ? args.grad_out_rows : args.grad_sum_rows;
    tma_load_1d(at(stage, source, i), static_cast<const T*>(data) + row_offset(rows, steps.first_row(step) + i),
                row_bytes, full[stage]);
  }
};

// Reads the rows of a stage from the ring; rows and columns that are not there become zeros. `sums` gets the thread's
// sums of squares, and of products with the gradient, of each row.
template <class T, class R, bool kAdds>
__device__ __forceinline__ void load_rows(const Tile<T, R, kAdds>& tile, int stage, int num_rows,
                                          const float (&weights)[R::kVectors][kWidth<T>],
                                          Vec16<T> (&x)[R::kRows][R::kVectors], Vec16<T> (&grad)[R::kRows][R::kVectors],
                                          Vec16<T> (&added)[R::kRows][R::kVectors], float (&sums)[2 * R::kRows]) {
#pragma unroll
  for (int i = 0; i < R::kRows; ++i) {
    sums[2 * i] = sums[2 * i + 1] = 0;
#pragma unroll
    for (int v = 0; v < R::kVectors; ++v) {
      const bool is_there = i < num_rows && tile.is_mine(v);
      const int place = v * R::kThreads + tile.thread;
      x[i][v] = is_there ? tile.at(stage, 0, i)[place] : Vec16<T>{};
      grad[i][v] = is_there ? tile.at(stage, 1, i)[place] : Vec16<T>{};
      if constexpr (kAdds) added[i][v] = is_there ? tile.at(stage, 2, i)[place] : Vec16<T>{};
#pragma unroll
      for (int j = 0; j < kWidth<T>; ++j) {
        const float value = widen(x[i][v].value[j]);
        sums[2 * i] += value * value;
        sums[2 * i + 1] += widen(grad[i][v].value[j]) * weights[v][j] * value;
      }
    }
  }
}

template <class T, class Weight, class R, bool kAdds>
__global__ void __launch_bounds__(R::kThreads, R::kBlocks)
    backward_of_long_rows(const RmsNormBackwardArgs args, const RowSteps steps) {
  constexpr int W = kWidth<T>;
  constexpr int kRows = R::kRows;
  constexpr int kVectors = R::kVectors;
  extern __shared__ __align__(128) unsigned char shared_memory[];
  __shared__ Mbarrier full[kStages];
  __shared__ float sums_of_warps[2][R::kThreads / kWarpSize][2 * kRows];
  const Tile<T, R, kAdds> tile{.args = args,
                               .steps = steps,
                               .ring = reinterpret_cast<Vec16<T>*>(shared_memory),
                               .full = full,
                               .thread = static_cast<int>(threadIdx.x),
                               .row_bytes = static_cast<std::uint32_t>(args.num_columns * sizeof(T))};
  tile.start();
  float weights[kVectors][W] = {};
  float grad_weights[kVectors][W] = {};
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (!tile.is_mine(v)) continue;
    const auto loaded = load_vec<Weight, W>(args.weight, tile.column(v));
#pragma unroll
    for (int j = 0; j < W; ++j) weights[v][j] = widen(loaded.value[j]) + (args.zero_centered ? 1.0F : 0.0F);
  }
  const float inv_n = 1.0F / static_cast<float>(args.num_columns);
  const auto eps = static_cast<float>(args.eps);
  PipelineState<kStages> state;
  for (int step = 0;; ++step, state.advance()) {
    const int num_rows = steps.num_rows(step);
    if (num_rows == 0) break;
    mbarrier_wait_parity(full[state.stage], state.phase);
    Vec16<T> x[kRows][kVectors];
    Vec16<T> grad[kRows][kVectors];
    Vec16<T> added[kRows][kVectors];
    float sums[2 * kRows];  // of squares, and of products with the gradient
    load_rows(tile, state.stage, num_rows, weights, x, grad, added, sums);
    const float sum = block_reduce_scatter(sums, sums_of_warps[step % 2]);
    if (tile.thread < kWarpSize) tile.fetch(step + kStages, state.stage);  // a barrier ago all threads read the stage
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float inv_rms = rsqrtf(__shfl_sync(kFullWarp, sum, 2 * i) * inv_n + eps);
      const float mean_grad_dot_x = __shfl_sync(kFullWarp, sum, 2 * i + 1) * inv_n;
      const float x_coefficient = mean_grad_dot_x * inv_rms * inv_rms * inv_rms;
      if (i >= num_rows) continue;
      const std::int64_t row = steps.first_row(step) + i;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        keep_packed(x[i][v]);
        keep_packed(grad[i][v]);
        Vec16<T> grad_x;
#pragma unroll
        for (int j = 0; j < W; ++j)
          grad_x.value[j] = backward_of_element<kAdds>(x[i][v].value[j], grad[i][v].value[j], added[i][v].value[j],
                                                       weights[v][j], inv_rms, x_coefficient, grad_weights[v][j]);
        if (tile.is_mine(v) && args.grad_x != nullptr)
          store_vec(grad_x, args.grad_x, row * args.num_columns + tile.column(v));
      }
    }
  }
  if (args.partials == nullptr) return;
  float* const partial = static_cast<float*>(args.partials) + blockIdx.x * args.num_columns;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (!tile.is_mine(v)) continue;
#pragma unroll
    for (int j = 0; j < W; j += 4)
      *reinterpret_cast<float4*>(partial + tile.column(v) + j) =
          float4{grad_weights[v][j], grad_weights[v][j + 1], grad_weights[v][j + 2], grad_weights[v][j + 3]};
  }
}

}  // namespace

unsigned launch_rms_norm_backward_of_long_rows(const RmsNormBackwardArgs& args, CUstream_st* stream) {
  unsigned blocks = 0;
  with_common_types(args.dtype, args.weight_dtype, [&]<class T, class Weight>() {
    with_rows(args.num_columns / kWidth<T>, [&]<class R>(R) {
      constexpr auto kMostBlocks = static_cast<unsigned>(kRmsNormPartials / 2 * R::kBlocks);
      blocks = std::min(num_blocks(args.num_rows, R::kRows), kMostBlocks);
      const auto launch = [&]<bool kAdds>(std::bool_constant<kAdds>) {
        launch_pdl(backward_of_long_rows<T, Weight, R, kAdds>,
                   {.num_blocks = blocks, .block = R::kThreads, .shared_bytes = kStages * kBytesOfStage<T, R, kAdds>},
                   stream, args, RowSteps::of(args.num_rows, blocks, R::kRows));
      };
      args.grad_sum == nullptr ? launch(std::false_type()) : launch(std::true_type());
    });
  });
  return blocks;
}

}  // namespace d9d::kernels::detail
