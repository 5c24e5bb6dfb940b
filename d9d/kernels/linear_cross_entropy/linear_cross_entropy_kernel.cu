// Formula: z = softcap(logits + bias), lse = log sum_v exp(z_v), loss = lse - z_target + z_loss_weight * lse^2,
//          dz_v = (d_loss (1 + 2 z_loss_weight lse) + d_lse) * exp(z_v - lse) - d_loss * [v = target].
// Legend:  each row has one target; logits come in blocks of columns of the vocabulary, v is a column.
// Mapping: logit_statistics, logit_gradient: one thread block per row, whose threads process 8 columns at a time;
//          check_targets: one thread per target; cross_entropy_loss: one thread per row; clear_tiles: one thread block
//          per row, a warp processes a tile of 256 columns at a time; scale_values, put_scaled: a thread processes 8
//          elements at a time, put_scaled one element of unaligned tensors.
// Numerics: fp32 (fp64 for fp64 rows), maxima subtracted before exp; sums in an order that only the sizes decide.
// Traffic: a block of logits is read once for the statistics and once for the gradient, which overwrites it; with a
//          filter the gradient is read again, and cleared tiles are written.
#include "d9d/kernels/linear_cross_entropy/logit_rows.cuh"

namespace d9d::kernels::detail {
namespace {

constexpr int kBlock = 512;
constexpr std::int64_t kTile = kBlock * kLogitsOfVec;
constexpr int kBlocksOfScale = 132 * 8;

__global__ void __launch_bounds__(kBlock) check_targets(const CheckTargetsArgs args) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  if (i >= args.size) return;
  const std::int64_t target = args.targets[i];
  const bool is_outside = target < 0 || target >= args.vocabulary;
  args.rows[i] = target == args.ignore_index ? kIgnored : (is_outside ? args.vocabulary : target);
}

template <class T, int kTiles>
__global__ void __launch_bounds__(kBlockOfStatistics) logit_statistics(const LogitStatisticsArgs args) {
  pdl_wait_and_trigger();
  using A = Accumulator<T>;
  __shared__ A scratch[kWarpSize];
  const std::int64_t row = blockIdx.x;
  const std::int64_t target = args.block.targets[row];
  if (target == kIgnored) return;
  const LogitRow<T, kTiles> logits(args.block, row);
  const A offset = logits.greatest(scratch);
  A sum = 0;
  logits.for_each([&](const A(&z)[kLogitsOfVec], std::int64_t) {
#pragma unroll
    for (int j = 0; j < kLogitsOfVec; ++j) sum += fast_exp<T>(z[j] - offset);
  });
  sum = block_sum(sum, scratch);

  if (threadIdx.x != 0) return;
  const std::int64_t target_column = target - args.block.first_column;
  if (target_column >= 0 && target_column < args.block.num_columns)
    static_cast<A*>(args.target_logit)[row] = logits.at(target_column);
  A* max_so_far = static_cast<A*>(args.max) + row;
  A* sum_so_far = static_cast<A*>(args.sum) + row;
  const A both = max(*max_so_far, offset);
  *sum_so_far = *sum_so_far * exp(*max_so_far - both) + sum * exp(offset - both);
  *max_so_far = both;
}

template <class A>
__global__ void __launch_bounds__(kBlock) cross_entropy_loss(const CrossEntropyLossArgs args) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  if (row >= args.num_rows) return;
  A loss = 0;
  A lse = 0;
  if (args.targets[row] != kIgnored) {
    const RowStatistics<A> statistics = over_ranks<A>(args.statistics, args.num_rows, row);
    lse = statistics.lse();
    loss = lse - statistics.target_logit + static_cast<A>(args.z_loss_weight) * lse * lse;
  }
  static_cast<A*>(args.loss)[row] = loss;
  static_cast<A*>(args.lse)[row] = lse;
}

template <class A>
__device__ __forceinline__ A row_gradient(const void* grads, std::int64_t stride, std::int64_t row) {
  return grads ? static_cast<const A*>(grads)[row * stride] : A{0};
}

// One thread block per row. Gradients overwrite the logits of the row: all threads read a tile before any of it is
// written. Elements of gradients are no larger than those of logits, so later tiles are not overwritten.
template <class T>
__global__ void __launch_bounds__(kBlock) logit_gradient(const LogitGradientArgs args) {
  using A = Accumulator<T>;
  const LogitBlock& block = args.block;
  const std::int64_t row = blockIdx.x;
  const bool is_ignored = block.targets[row] == kIgnored;
  const std::int64_t target_column = block.targets[row] - block.first_column;
  const A lse = static_cast<const A*>(args.lse)[row];
  const A by_target = row_gradient<A>(args.grad_loss, args.grad_loss_stride, row);
  const A by_softmax = by_target * (1 + 2 * static_cast<A>(args.z_loss_weight) * lse) +
                       row_gradient<A>(args.grad_lse, args.grad_lse_stride, row);
  if (args.threshold && threadIdx.x == 0)
    static_cast<A*>(args.threshold)[row] = static_cast<A>(args.filter_eps) * max(fabs(by_softmax), fabs(by_target));
  T* grads = reinterpret_cast<T*>(static_cast<A*>(block.logits) + row * block.row_stride);
  for (std::int64_t tile = 0; tile < block.num_columns; tile += kTile) {
    const std::int64_t column = tile + threadIdx.x * kLogitsOfVec;
    LogitVec<T> grad;
    if (column < block.num_columns) {
      A z[kLogitsOfVec];
      load_logits<T>(block, row, column, z);
#pragma unroll
      for (int j = 0; j < kLogitsOfVec; ++j) {
        A value = by_softmax * exp(z[j] - lse);
        if (column + j == target_column) value -= by_target;
        if (block.softcap > 0) value *= slope(z[j], block.softcap);
        grad.value[j] = is_ignored || column + j >= block.num_columns ? narrow<T>(0) : narrow<T>(value);
      }
    }
    __syncthreads();
    if (column < block.num_columns) *reinterpret_cast<LogitVec<T>*>(grads + column) = grad;
  }
}

constexpr int kTilesInFlight = 4;  // loads of eight columns that a thread keeps in flight
static_assert(kFilterTileColumns == kWarpSize * kLogitsOfVec);

// One thread block per row; a warp decides about a tile.
template <class T>
__global__ void __launch_bounds__(kBlock) clear_tiles(const ClearTilesArgs args) {
  pdl_wait_and_trigger();
  using A = Accumulator<T>;
  const std::int64_t row = blockIdx.x;
  const A threshold = static_cast<const A*>(args.threshold)[row];
  T* const values = static_cast<T*>(args.values) + row * args.row_stride;
  for (std::int64_t tile = 0; tile < args.num_columns; tile += kTilesInFlight * kTile) {
    const std::int64_t first = tile + threadIdx.x * kLogitsOfVec;  // the same tile for all threads of a warp
    LogitVec<T> loaded[kTilesInFlight];
#pragma unroll
    for (int i = 0; i < kTilesInFlight; ++i)
      if (first + i * kTile < args.num_columns)
        loaded[i] = *reinterpret_cast<const LogitVec<T>*>(values + first + i * kTile);
#pragma unroll
    for (int i = 0; i < kTilesInFlight; ++i) {
      const std::int64_t column = first + i * kTile;
      bool is_large = false;
      if (column < args.num_columns) {
#pragma unroll
        for (int j = 0; j < kLogitsOfVec; ++j)
          is_large |= column + j < args.num_columns && !(fabs(widen(loaded[i].value[j])) < threshold);
      }
      const bool is_kept = __any_sync(kFullWarp, is_large);
      if (!is_kept && column < args.num_columns) *reinterpret_cast<LogitVec<T>*>(values + column) = LogitVec<T>{};
    }
  }
}

__global__ void __launch_bounds__(kBlock) scale_values(const ScaleArgs args) {
  const float factor = *args.factor;
  if (factor == 1.0F) return;
  auto* const values = static_cast<__nv_bfloat16*>(args.values);
  const std::int64_t num_groups = args.size / kLogitsOfVec;
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  const std::int64_t num_threads = static_cast<std::int64_t>(gridDim.x) * kBlock;
  for (std::int64_t i = thread; i < num_groups; i += num_threads) {
    auto group = reinterpret_cast<LogitVec<__nv_bfloat16>*>(values)[i];
#pragma unroll
    for (int j = 0; j < kLogitsOfVec; ++j) group.value[j] = narrow<__nv_bfloat16>(widen(group.value[j]) * factor);
    reinterpret_cast<LogitVec<__nv_bfloat16>*>(values)[i] = group;
  }
  if (const std::int64_t i = num_groups * kLogitsOfVec + thread; i < args.size)
    values[i] = narrow<__nv_bfloat16>(widen(values[i]) * factor);
}

// A thread processes kCount contiguous elements at a time: kLogitsOfVec if both tensors are aligned to 16 bytes, else
// 1.
template <class Out, class Value, int kCount>
__global__ void __launch_bounds__(kBlock) put_scaled(const PutScaledArgs args) {
  const float factor = *args.factor;
  auto* const out = static_cast<Out*>(args.out);
  const auto* const values = static_cast<const Value*>(args.values);
  const std::int64_t num_groups = args.size / kCount;
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  const std::int64_t num_threads = static_cast<std::int64_t>(gridDim.x) * kBlock;
  for (std::int64_t i = thread; i < num_groups; i += num_threads) {
    const auto read = reinterpret_cast<const Vec<Value, kCount>*>(values)[i];
    Vec<Out, kCount> written = {};
    if (args.adds) written = reinterpret_cast<const Vec<Out, kCount>*>(out)[i];
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const float scaled = widen(read.value[j]) * factor;
      written.value[j] = narrow<Out>(args.adds ? widen(written.value[j]) + scaled : scaled);
    }
    reinterpret_cast<Vec<Out, kCount>*>(out)[i] = written;
  }
  if (const std::int64_t i = num_groups * kCount + thread; i < args.size) {
    const float scaled = widen(values[i]) * factor;
    out[i] = narrow<Out>(args.adds ? widen(out[i]) + scaled : scaled);
  }
}

template <class Out, class Value>
void start_put_scaled(const PutScaledArgs& args, CUstream_st* stream) {
  const unsigned grid = std::min<unsigned>(num_blocks(args.size, kTile), kBlocksOfScale);
  if (is_aligned(args.out) && is_aligned(args.values)) {
    put_scaled<Out, Value, kLogitsOfVec><<<grid, kBlock, 0, stream>>>(args);
  } else {
    put_scaled<Out, Value, 1><<<grid, kBlock, 0, stream>>>(args);
  }
}

}  // namespace

void d9d_launch_check_targets(const CheckTargetsArgs& args, CUstream_st* stream) {
  if (args.size == 0) return;
  check_targets<<<num_blocks(args.size, kBlock), kBlock, 0, stream>>>(args);
  check_launch("linear_cross_entropy");
}

void d9d_launch_logit_statistics(const LogitStatisticsArgs& args, CUstream_st* stream) {
  if (args.block.num_rows == 0 || args.block.num_columns == 0) return;
  with_element_type(args.block.dtype, [&]<class T>(Element<T>) {
    constexpr int kTiles = sizeof(T) == 2 ? 4 : 1;
    launch_pdl(logit_statistics<T, kTiles>, {num_blocks(args.block.num_rows, 1), kBlockOfStatistics}, stream, args);
  });
  check_launch("linear_cross_entropy");
}

void d9d_launch_cross_entropy_loss(const CrossEntropyLossArgs& args, CUstream_st* stream) {
  if (args.num_rows == 0) return;
  const unsigned grid = num_blocks(args.num_rows, kBlock);
  with_element_type(
      args.dtype, [&]<class T>(Element<T>) { cross_entropy_loss<Accumulator<T>><<<grid, kBlock, 0, stream>>>(args); });
  check_launch("linear_cross_entropy");
}

void d9d_launch_logit_gradient(const LogitGradientArgs& args, CUstream_st* stream) {
  if (args.block.num_rows == 0 || args.block.num_columns == 0) return;
  with_element_type(args.block.dtype, [&]<class T>(Element<T>) {
    logit_gradient<T><<<num_blocks(args.block.num_rows, 1), kBlock, 0, stream>>>(args);
  });
  check_launch("linear_cross_entropy");
}

void d9d_launch_clear_tiles(const ClearTilesArgs& args, CUstream_st* stream) {
  if (args.num_rows == 0 || args.num_columns == 0) return;
  with_element_type(args.dtype, [&]<class T>(Element<T>) {
    launch_pdl(clear_tiles<T>, {num_blocks(args.num_rows, 1), kBlock}, stream, args);
  });
  check_launch("linear_cross_entropy");
}

void d9d_launch_put_scaled(const PutScaledArgs& args, CUstream_st* stream) {
  if (args.size == 0) return;
  const bool is_out_float = args.out_dtype == Dtype::kFloat32, are_values_float = args.values_dtype == Dtype::kFloat32;
  if (is_out_float) {
    are_values_float ? start_put_scaled<float, float>(args, stream)
                     : start_put_scaled<float, __nv_bfloat16>(args, stream);
  } else {
    are_values_float ? start_put_scaled<__nv_bfloat16, float>(args, stream)
                     : start_put_scaled<__nv_bfloat16, __nv_bfloat16>(args, stream);
  }
  check_launch("linear_cross_entropy");
}

void d9d_launch_scale(const ScaleArgs& args, CUstream_st* stream) {
  if (args.size == 0) return;
  const unsigned grid = std::min<unsigned>(num_blocks(args.size, kTile), kBlocksOfScale);
  scale_values<<<grid, kBlock, 0, stream>>>(args);
  check_launch("linear_cross_entropy");
}

}  // namespace d9d::kernels::detail
