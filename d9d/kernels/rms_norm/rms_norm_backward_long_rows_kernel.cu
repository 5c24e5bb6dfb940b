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

template <class T, class Weight, class R, bool kAdds>
__global__ void __launch_bounds__(R::kThreads, R::kBlocks)
    backward_of_long_rows(const RmsNormBackwardArgs args, const RowSteps steps) {
  constexpr int W = kWidth<T>;
  constexpr int kRows = R::kRows;
  constexpr int kVectors = R::kVectors;
  constexpr int kSources = kAdds ? 3 : 2;
  extern __shared__ __align__(128) unsigned char shared_memory[];  // [kStages, kSources, kRows, kVectors, kThreads]
  __shared__ Mbarrier full[kStages];
  __shared__ float sums_of_warps[2][R::kThreads / kWarpSize][2 * kRows];
  auto* const ring = reinterpret_cast<Vec16<T>*>(shared_memory);
  const auto at = [&](int stage, int source, int row) {
    return ring + ((stage * kSources + source) * kRows + row) * kVectors * R::kThreads;
  };
  const int thread = static_cast<int>(threadIdx.x);
  const auto column_of = [&](int v) { return (v * R::kThreads + thread) * W; };
  const auto is_mine = [&](int v) { return column_of(v) < args.num_columns; };
  const auto row_bytes = static_cast<std::uint32_t>(args.num_columns * sizeof(T));
  if (thread < kStages * kRows && thread % kRows < steps.num_rows(thread / kRows)) {
    // x is the forward's input, which the previous kernel does not write. So its first rows may be prefetched into L2
    // while that kernel still runs.
    const std::int64_t row = steps.first_row(thread / kRows) + thread % kRows;
    tma_prefetch_1d(static_cast<const T*>(args.x) + row_offset(args.x_rows, row), row_bytes);
  }
  if (thread == 0) {
    for (Mbarrier& barrier : full) mbarrier_init(barrier, 1);
    fence_mbarrier_init();
  }
  __syncthreads();
  pdl_wait_and_trigger();

  const auto fetch = [&](int step, int stage) {  // called by the first warp; each lane loads one row of one source
    const int num_rows = steps.num_rows(step);
    if (thread == 0) mbarrier_arrive_expect_tx(full[stage], kSources * num_rows * row_bytes);
    __syncwarp();
    const int source = thread / kRows;
    const int i = thread % kRows;
    if (source >= kSources || i >= num_rows) return;
    const void* const data = source == 0 ? args.x : source == 1 ? args.grad_out : args.grad_sum;
    const StridedRows& rows = source == 0 ? args.x_rows : source == 1 ? args.grad_out_rows : args.grad_sum_rows;
    tma_load_1d(at(stage, source, i), static_cast<const T*>(data) + row_offset(rows, steps.first_row(step) + i),
                row_bytes, full[stage]);
  };
  if (thread < kWarpSize)
    for (int stage = 0; stage < kStages; ++stage) fetch(stage, stage);

  float weights[kVectors][W] = {};
  float grad_weights[kVectors][W] = {};
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (!is_mine(v)) continue;
    const auto loaded = load_vec<Weight, W>(args.weight, column_of(v));
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
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      sums[2 * i] = sums[2 * i + 1] = 0;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const bool is_there = i < num_rows && is_mine(v);
        const int place = v * R::kThreads + thread;
        x[i][v] = is_there ? at(state.stage, 0, i)[place] : Vec16<T>{};
        grad[i][v] = is_there ? at(state.stage, 1, i)[place] : Vec16<T>{};
        if constexpr (kAdds) added[i][v] = is_there ? at(state.stage, 2, i)[place] : Vec16<T>{};
#pragma unroll
        for (int j = 0; j < W; ++j) {
          const float value = widen(x[i][v].value[j]);
          sums[2 * i] += value * value;
          sums[2 * i + 1] += widen(grad[i][v].value[j]) * weights[v][j] * value;
        }
      }
    }
    const float sum = block_reduce_scatter(sums, sums_of_warps[step % 2]);
    if (thread < kWarpSize) fetch(step + kStages, state.stage);  // the barrier above: all threads have read the stage
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
        for (int j = 0; j < W; ++j) {
          const float value = widen(x[i][v].value[j]);
          const float scaled = widen(grad[i][v].value[j]) * inv_rms;
          grad_weights[v][j] += scaled * value;
          const float grad_of_norm = scaled * weights[v][j] - value * x_coefficient;
          grad_x.value[j] = narrow<T>(kAdds ? grad_of_norm + widen(added[i][v].value[j]) : grad_of_norm);
        }
        if (is_mine(v) && args.grad_x != nullptr) store_vec(grad_x, args.grad_x, row * args.num_columns + column_of(v));
      }
    }
  }
  if (args.partials == nullptr) return;
  float* const partial = static_cast<float*>(args.partials) + blockIdx.x * args.num_columns;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (!is_mine(v)) continue;
#pragma unroll
    for (int j = 0; j < W; j += 4)
      *reinterpret_cast<float4*>(partial + column_of(v) + j) =
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
