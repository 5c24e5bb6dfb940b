#include <algorithm>

#include "d9d/kernels/device/launch.cuh"
#include "d9d/kernels/device/tma.cuh"
#include "d9d/kernels/device/vector.cuh"
#include "d9d/kernels/rms_norm/backward_launchers.h"
#include "d9d/kernels/rms_norm/weights.cuh"

// The formulas stand in rms_norm_backward_kernel.cu. A block works on whole rows: each thread has columns of its own,
// and keeps their factors and the sums of their gradients over all rows of the block. Rows are copied in bulk while
// those before them are worked on. Few are on their way at once: with more, some multiprocessors get less than their
// share of the memory's bandwidth and end late.
namespace d9d::kernels::detail {
namespace {

constexpr int kStages = 2;

// Threads of a block, 16-byte vectors of a thread and row, rows a turn.
template <int kThreadsOfBlock, int kVectorsOfThread, int kRowsOfTurn>
struct Rows {
  static constexpr int kThreads = kThreadsOfBlock;
  static constexpr int kVectors = kVectorsOfThread;
  static constexpr int kRows = kRowsOfTurn;
  static constexpr int kBlocks = 512 / kThreadsOfBlock;  // of a multiprocessor
};

template <class Function>
bool with_rows(std::int64_t num_vectors, const Function& function) {
  if (num_vectors <= 256) return function(Rows<256, 1, 2>()), true;
  if (num_vectors <= 512) return function(Rows<512, 1, 2>()), true;
  if (num_vectors <= 1024) return function(Rows<512, 2, 1>()), true;
  if (num_vectors <= 2048) return function(Rows<512, 4, 1>()), true;
  return false;
}

// Rows divided among blocks: some a turn, and in the last turn as many for each, or one more.
struct RowTurns {
  int rows_of_turn;  // and block
  int num_full;
  int share_of_last;   // of a block
  int one_more_until;  // the first blocks have one more

  static RowTurns of(std::int64_t num_rows, std::int64_t num_blocks, int rows_of_turn) {
    const std::int64_t left = num_rows % (num_blocks * rows_of_turn);
    return {.rows_of_turn = rows_of_turn,
            .num_full = static_cast<int>(num_rows / (num_blocks * rows_of_turn)),
            .share_of_last = static_cast<int>(left / num_blocks),
            .one_more_until = static_cast<int>(left % num_blocks)};
  }

  // Of this block.
  [[nodiscard]] __device__ __forceinline__ int num_rows(int turn) const {
    const int block = static_cast<int>(blockIdx.x);
    if (turn < num_full) return rows_of_turn;
    return turn == num_full ? share_of_last + (block < one_more_until ? 1 : 0) : 0;
  }
  [[nodiscard]] __device__ __forceinline__ std::int64_t first_row(int turn) const {
    const int block = static_cast<int>(blockIdx.x);
    const std::int64_t first_of_turn = static_cast<std::int64_t>(turn) * gridDim.x * rows_of_turn;
    if (turn < num_full) return first_of_turn + block * rows_of_turn;
    return first_of_turn + block * share_of_last + min(block, one_more_until);
  }
};

// Sums of each of kValues numbers (a power of two) over the warp: lane l gets that of number l / (32 / kValues).
template <int kValues>
__device__ __forceinline__ float warp_sums(float (&values)[kValues]) {
  const unsigned lane = threadIdx.x % kWarpSize;
  int offset = kWarpSize / 2;
#pragma unroll
  for (int left = kValues / 2; left >= 1; left /= 2) {  // a lane gives half of its numbers for the other half
    const bool is_upper = (lane & offset) != 0;
#pragma unroll
    for (int i = 0; i < left; ++i) {
      const float given = is_upper ? values[i] : values[i + left];
      const float kept = is_upper ? values[i + left] : values[i];
      values[i] = kept + __shfl_xor_sync(kFullWarp, given, offset);
    }
    offset /= 2;
  }
  for (; offset >= 1; offset /= 2) values[0] += __shfl_xor_sync(kFullWarp, values[0], offset);
  return values[0];
}

// The same over the block: lane l of every warp gets number l % kValues. Meets all threads once; `of_warps` is not to
// be used for the next sums, but may be for those after them.
template <int kValues, int kWarps>
__device__ __forceinline__ float block_sums(float (&values)[kValues], float (&of_warps)[kWarps][kValues]) {
  constexpr int kLanes = kWarpSize / kValues;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const float of_warp = warp_sums(values);
  if (lane % kLanes == 0) of_warps[threadIdx.x / kWarpSize][lane / kLanes] = of_warp;
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int first = 0; first < kWarps; first += kLanes) {
    const int warp = first + lane / kValues;
    if (kWarps % kLanes == 0 || warp < kWarps) sum += of_warps[warp][lane % kValues];
  }
#pragma unroll
  for (int offset = kValues; offset < kWarpSize; offset *= 2) sum += __shfl_xor_sync(kFullWarp, sum, offset);
  return sum;
}

template <class T, class R, bool kAdds>
constexpr unsigned kBytesOfStage = (kAdds ? 3 : 2) * R::kRows* R::kVectors* R::kThreads * sizeof(Vector<T>);

template <class T, class Weight, class R, bool kAdds>
__global__ void __launch_bounds__(R::kThreads, R::kBlocks)
    backward_of_long_rows(const RmsNormBackwardArgs args, const RowTurns turns) {
  constexpr int W = kWidth<T>;
  constexpr int kRows = R::kRows;
  constexpr int kVectors = R::kVectors;
  constexpr int kSources = kAdds ? 3 : 2;
  extern __shared__ __align__(128) unsigned char shared_memory[];  // [kStages, kSources, kRows, kVectors, kThreads]
  __shared__ Mbarrier arrived[kStages];
  __shared__ float sums_of_warps[2][R::kThreads / kWarpSize][2 * kRows];
  auto* const ring = reinterpret_cast<Vector<T>*>(shared_memory);
  const auto at = [&](int stage, int source, int row) {
    return ring + ((stage * kSources + source) * kRows + row) * kVectors * R::kThreads;
  };
  const int thread = static_cast<int>(threadIdx.x);
  const auto column_of = [&](int v) { return (v * R::kThreads + thread) * W; };
  const auto is_mine = [&](int v) { return column_of(v) < args.num_columns; };
  const auto row_bytes = static_cast<std::uint32_t>(args.num_columns * sizeof(T));
  if (thread < kStages * kRows && thread % kRows < turns.num_rows(thread / kRows)) {
    // The forward's input has been there for long: its first rows come while the kernel before ends.
    const std::int64_t row = turns.first_row(thread / kRows) + thread % kRows;
    tma_prefetch_1d(static_cast<const T*>(args.x) + row_offset(args.x_rows, row), row_bytes);
  }
  if (thread == 0) {
    for (Mbarrier& barrier : arrived) mbarrier_init(barrier, 1);
    fence_mbarrier_init();
  }
  __syncthreads();
  pdl_wait_and_trigger();

  const auto fetch = [&](int turn, int stage) {  // by the first warp: a lane a row of a source
    const int num_rows = turns.num_rows(turn);
    if (thread == 0) mbarrier_arrive_expect_tx(arrived[stage], kSources * num_rows * row_bytes);
    __syncwarp();
    const int source = thread / kRows;
    const int i = thread % kRows;
    if (source >= kSources || i >= num_rows) return;
    const void* const data = source == 0 ? args.x : source == 1 ? args.grad_out : args.grad_sum;
    const StridedRows& rows = source == 0 ? args.x_rows : source == 1 ? args.grad_out_rows : args.grad_sum_rows;
    tma_load_1d(at(stage, source, i), static_cast<const T*>(data) + row_offset(rows, turns.first_row(turn) + i),
                row_bytes, arrived[stage]);
  };
  if (thread < kWarpSize)
    for (int stage = 0; stage < kStages; ++stage) fetch(stage, stage);

  float factors[kVectors][W] = {};
  float factor_sums[kVectors][W] = {};
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (!is_mine(v)) continue;
    const auto weight =
        *reinterpret_cast<const Elements<Weight, W>*>(static_cast<const Weight*>(args.weight) + column_of(v));
#pragma unroll
    for (int j = 0; j < W; ++j) factors[v][j] = widen(weight.value[j]) + (args.zero_centered ? 1.0F : 0.0F);
  }
  const float share = 1.0F / static_cast<float>(args.num_columns);
  const auto eps = static_cast<float>(args.eps);
  PipelineState<kStages> position;
  for (int turn = 0;; ++turn, position.advance()) {
    const int num_rows = turns.num_rows(turn);
    if (num_rows == 0) break;
    mbarrier_wait_parity(arrived[position.stage], position.phase);
    Vector<T> x[kRows][kVectors];
    Vector<T> grad[kRows][kVectors];
    Vector<T> added[kRows][kVectors];
    float sums[2 * kRows];  // of squares, and of products with the gradient
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      sums[2 * i] = sums[2 * i + 1] = 0;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const bool is_there = i < num_rows && is_mine(v);
        const int place = v * R::kThreads + thread;
        x[i][v] = is_there ? at(position.stage, 0, i)[place] : Vector<T>{};
        grad[i][v] = is_there ? at(position.stage, 1, i)[place] : Vector<T>{};
        if constexpr (kAdds) added[i][v] = is_there ? at(position.stage, 2, i)[place] : Vector<T>{};
#pragma unroll
        for (int j = 0; j < W; ++j) {
          const float value = widen(x[i][v].value[j]);
          sums[2 * i] += value * value;
          sums[2 * i + 1] += widen(grad[i][v].value[j]) * factors[v][j] * value;
        }
      }
    }
    const float sum = block_sums(sums, sums_of_warps[turn % 2]);
    if (thread < kWarpSize) fetch(turn + kStages, position.stage);  // all threads have read it
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float inv_rms = rsqrtf(__shfl_sync(kFullWarp, sum, 2 * i) * share + eps);
      const float projection = __shfl_sync(kFullWarp, sum, 2 * i + 1) * share * inv_rms * inv_rms * inv_rms;
      if (i >= num_rows) continue;
      const std::int64_t row = turns.first_row(turn) + i;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        keep_packed(x[i][v]);
        keep_packed(grad[i][v]);
        Vector<T> grad_x;
#pragma unroll
        for (int j = 0; j < W; ++j) {
          const float value = widen(x[i][v].value[j]);
          const float scaled = widen(grad[i][v].value[j]) * inv_rms;
          factor_sums[v][j] += scaled * value;
          const float of_norm = scaled * factors[v][j] - value * projection;
          grad_x.value[j] = narrow<T>(kAdds ? of_norm + widen(added[i][v].value[j]) : of_norm);
        }
        if (is_mine(v) && args.grad_x != nullptr)
          store_vector(grad_x, args.grad_x, row * args.num_columns + column_of(v));
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
          float4{factor_sums[v][j], factor_sums[v][j + 1], factor_sums[v][j + 2], factor_sums[v][j + 3]};
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
                   stream, args, RowTurns::of(args.num_rows, blocks, R::kRows));
      };
      args.grad_sum == nullptr ? launch(std::false_type()) : launch(std::true_type());
    });
  });
  return blocks;
}

}  // namespace d9d::kernels::detail
