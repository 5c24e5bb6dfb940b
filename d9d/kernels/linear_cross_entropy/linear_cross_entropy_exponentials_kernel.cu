// Formula: sum = sum_v exp(z_v - reference), e_v = exp(z_v - reference) * softcap'(v); factor = (1 + 2 z_loss_weight
//          lse) / sum, so that factor * e_v is the gradient of the logit of a column v that is not the target. Where
//          ranks have parts of the vocabulary, sum and lse are over the columns of all of them.
// Legend:  each row has one target; z = softcap(logits + bias) in blocks of columns; reference is about the maximum of
//          the row.
// Mapping: one thread block per row; a thread processes 8 columns at a time.
// Numerics: fp32 sums in an order that only the sizes decide; exponentials are rounded once to bf16, and again if a
//          later block of logits changes the reference.
// Traffic: logits are read once, and twice for the first block of a row; exponentials are written once.
#include "d9d/kernels/linear_cross_entropy/logit_rows.cuh"

namespace d9d::kernels::detail {
namespace {

constexpr int kTiles = 3;  // loads of eight columns that a thread keeps in flight
constexpr int kMaxBlock = 512;

// Writes the exponentials of this thread's columns, and adds them to `sum`. Returns the greatest of their logits.
template <bool kTransforms>
__device__ __forceinline__ float write_exponentials(const LogitBlock& block, std::int64_t row, float reference,
                                                    __nv_bfloat16* exponentials, float& sum) {
  const std::int64_t tile = static_cast<std::int64_t>(blockDim.x) * kLogitsOfVec;
  float greatest = -kInfinity<float>;
  for (std::int64_t first = threadIdx.x * kLogitsOfVec; first < block.num_columns; first += kTiles * tile) {
    float z[kTiles][kLogitsOfVec];
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
      if (first + i * tile < block.num_columns)
        load_logits<__nv_bfloat16, kTransforms>(block, row, first + i * tile, z[i]);
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      if (first + i * tile >= block.num_columns) break;
      float values[kLogitsOfVec];
#pragma unroll
      for (int j = 0; j < kLogitsOfVec; ++j) {
        greatest = max(greatest, z[i][j]);
        values[j] = fast_exp<__nv_bfloat16>(z[i][j] - reference);
        sum += values[j];
        if (kTransforms && block.softcap > 0 && values[j] > 0) values[j] *= slope(z[i][j], block.softcap);
      }
      store_packed(pack<__nv_bfloat16>(values), exponentials + first + i * tile);
    }
  }
  return greatest;
}

template <bool kTransforms>
__device__ __forceinline__ float greatest_logit(const LogitBlock& block, std::int64_t row) {
  float greatest = -kInfinity<float>;
  for (std::int64_t first = threadIdx.x * kLogitsOfVec; first < block.num_columns; first += blockDim.x * kLogitsOfVec) {
    float z[kLogitsOfVec];
    load_logits<__nv_bfloat16, kTransforms>(block, row, first, z);
#pragma unroll
    for (int j = 0; j < kLogitsOfVec; ++j) greatest = max(greatest, z[j]);
  }
  return greatest;
}

// One thread block per row. Except for a row's first block of logits, the reference is known beforehand, so that
// exponentials are written without first finding the greatest logit. If that turns out to be too far above the
// reference, they are written again.
template <bool kTransforms>
__global__ void __launch_bounds__(kMaxBlock) logit_exponentials(const LogitExponentialsArgs args) {
  pdl_wait_and_trigger();
  __shared__ float scratch[kWarpSize];
  const LogitBlock& block = args.block;
  const std::int64_t row = blockIdx.x;
  const std::int64_t target = block.targets[row];
  const float sum_so_far = args.is_first ? 0 : args.sum[row];
  const float reference_so_far = args.is_first ? -kInfinity<float> : args.reference[row];
  auto* const exponentials =
      static_cast<__nv_bfloat16*>(args.exponentials) + row * args.exponentials_stride + args.first_exponential;
  if (target == kIgnored) {
    for (std::int64_t column = threadIdx.x * kLogitsOfVec; column < block.num_columns;
         column += blockDim.x * kLogitsOfVec)
      *reinterpret_cast<LogitVec<__nv_bfloat16>*>(exponentials + column) = LogitVec<__nv_bfloat16>{};
    return;
  }
  const std::int64_t target_column = target - block.first_column;
  const bool has_target = target_column >= 0 && target_column < block.num_columns;
  float target_logit = 0;
  if (has_target && threadIdx.x == 0) {
    float z[kLogitsOfVec];
    load_logits<__nv_bfloat16, kTransforms>(block, row, target_column / kLogitsOfVec * kLogitsOfVec, z);
#pragma unroll
    for (int j = 0; j < kLogitsOfVec; ++j)
      if (j == target_column % kLogitsOfVec) target_logit = z[j];
  }
  const auto over_block = [&](float value) {
    return block_reduce(value, -kInfinity<float>, scratch, [](float a, float b) { return max(a, b); });
  };
  float reference = reference_so_far;
  if (args.is_first) reference = max(over_block(greatest_logit<kTransforms>(block, row)), kLowest<float>);
  float sum = 0;
  const float greatest = over_block(write_exponentials<kTransforms>(block, row, reference, exponentials, sum));
  if (greatest > reference + kMaxAboveReference) {
    reference = greatest;
    sum = 0;
    write_exponentials<kTransforms>(block, row, reference, exponentials, sum);
  }
  sum = block_sum(sum, scratch);

  if (threadIdx.x != 0) return;
  if (has_target) {
    args.target_logit[row] = target_logit;
    args.target_place[row] = args.first_exponential + target_column;
  } else if (args.is_first) {
    args.target_logit[row] = nanf("");
    args.target_place[row] = -1;
  }
  args.sum[row] = sum_so_far * expf(reference_so_far - reference) + sum;
  args.reference[row] = reference;
  args.reference_of_block[row * args.reference_of_block_stride] = reference;
}

__device__ __forceinline__ float final_reference(float reference, const RowStatistics<float>& of_ranks) {
  return of_ranks.max - reference > kMaxBelowOtherRanks ? of_ranks.max : reference;
}

// One thread block per row. Most rows need no rescaling.
__global__ void __launch_bounds__(kBlockOfStatistics) rescale_exponentials(const RescaleExponentialsArgs args) {
  pdl_wait_and_trigger();
  const std::int64_t row = blockIdx.x;
  const float reference = final_reference(args.reference[row], over_ranks<float>(args.statistics, args.num_rows, row));
  const float* const of_block = args.reference_of_block + row * args.reference_of_block_stride;
  const std::int64_t num_blocks = (args.num_columns + args.block_columns - 1) / args.block_columns;
  bool is_other = false;
  for (std::int64_t block = threadIdx.x; block < num_blocks; block += kBlockOfStatistics)
    is_other |= of_block[block] != reference;
  if (!__syncthreads_or(static_cast<int>(is_other)) || args.targets[row] == kIgnored) return;
  auto* const exponentials = static_cast<__nv_bfloat16*>(args.exponentials) + row * args.row_stride;
  for (std::int64_t block = 0; block < num_blocks; ++block) {
    if (of_block[block] == reference) continue;
    const float scale = expf(of_block[block] - reference);
    const std::int64_t end = min(args.num_columns, (block + 1) * args.block_columns);
    for (std::int64_t column = block * args.block_columns + threadIdx.x; column < end; column += kBlockOfStatistics)
      exponentials[column] = narrow<__nv_bfloat16>(widen(exponentials[column]) * scale);
  }
}

// The target's exponential is its gradient divided by the factor, so the factor must not be 0.
constexpr float kLeastSoftmaxFactor = 1e-6F;

__global__ void __launch_bounds__(kBlockOfStatistics) finish_rows(const FinishRowsArgs args) {
  pdl_wait_and_trigger();
  const std::int64_t row = blockIdx.x;
  const bool is_ignored = args.targets[row] == kIgnored;
  const RowStatistics<float> statistics = over_ranks<float>(args.statistics, args.num_rows, row);
  const float lse = is_ignored ? 0 : statistics.lse();
  float by_softmax = 1 + 2 * static_cast<float>(args.z_loss_weight) * lse;
  if (fabsf(by_softmax) < kLeastSoftmaxFactor) by_softmax = kLeastSoftmaxFactor;
  // The sum over all columns of the exponentials with the final reference of this rank.
  const float sum = statistics.sum * expf(statistics.max - final_reference(args.reference[row], statistics));
  const float factor = is_ignored ? 0 : by_softmax / sum;
  if (threadIdx.x == 0) {
    const float target_logit = statistics.target_logit;
    args.loss[row] = is_ignored ? 0 : lse - target_logit + static_cast<float>(args.z_loss_weight) * lse * lse;
    args.lse[row] = lse;
    args.factor[row] = factor;
    if (args.threshold != nullptr) {
      const float scale = max(fabsf(by_softmax), 1.0F);
      args.threshold[row] = is_ignored ? 0 : static_cast<float>(args.filter_eps) * scale / fabsf(factor);
    }
    if (!is_ignored && args.target_place[row] >= 0) {
      float grad = by_softmax * expf(target_logit - lse) - 1;
      if (args.softcap > 0) grad *= slope(target_logit, args.softcap);
      static_cast<__nv_bfloat16*>(args.exponentials)[row * args.exponentials_stride + args.target_place[row]] =
          narrow<__nv_bfloat16>(grad / factor);
    }
  }
  if (args.scaled_hidden == nullptr) return;
  const auto* const hidden = static_cast<const __nv_bfloat16*>(args.hidden) + row * args.hidden_size;
  auto* const scaled = static_cast<__nv_bfloat16*>(args.scaled_hidden) + row * args.hidden_size;
  const auto scale = [&](auto piece) {
    constexpr int kCount = decltype(piece)::value;
    using P = Vec<__nv_bfloat16, kCount>;
    for (std::int64_t i = threadIdx.x; i < args.hidden_size / kCount; i += kBlockOfStatistics) {
      P values = reinterpret_cast<const P*>(hidden)[i];
#pragma unroll
      for (int j = 0; j < kCount; ++j) values.value[j] = narrow<__nv_bfloat16>(widen(values.value[j]) * factor);
      reinterpret_cast<P*>(scaled)[i] = values;
    }
  };
  const bool is_aligned =
      args.hidden_size % kLogitsOfVec == 0 && reinterpret_cast<std::uintptr_t>(args.hidden) % 16 == 0;
  is_aligned ? scale(std::integral_constant<int, kLogitsOfVec>()) : scale(std::integral_constant<int, 1>());
}

// One thread block per row.
__global__ void __launch_bounds__(kBlockOfStatistics) scale_rows(const ScaleRowsArgs args) {
  pdl_wait_and_trigger();
  const std::int64_t row = blockIdx.x;
  const float factor = args.factor[row];
  const float* const values = args.values + row * args.num_columns;
  auto* const out = static_cast<__nv_bfloat16*>(args.out) + row * args.num_columns;
  const auto scale = [&](auto piece) {
    constexpr int kCount = decltype(piece)::value;
    for (std::int64_t i = threadIdx.x; i < args.num_columns / kCount; i += kBlockOfStatistics) {
      const auto read = reinterpret_cast<const Vec<float, kCount>*>(values)[i];
      Vec<__nv_bfloat16, kCount> scaled;
#pragma unroll
      for (int j = 0; j < kCount; ++j) scaled.value[j] = narrow<__nv_bfloat16>(read.value[j] * factor);
      reinterpret_cast<Vec<__nv_bfloat16, kCount>*>(out)[i] = scaled;
    }
  };
  args.num_columns % 4 == 0 ? scale(std::integral_constant<int, 4>()) : scale(std::integral_constant<int, 1>());
}

}  // namespace

void d9d_launch_logit_exponentials(const LogitExponentialsArgs& args, CUstream_st* stream) {
  if (args.block.num_rows == 0 || args.block.num_columns == 0) return;
  const unsigned num_warps = num_blocks(args.block.num_columns, kTiles * kLogitsOfVec * kWarpSize);
  const unsigned block = std::min<unsigned>(num_warps * kWarpSize, kMaxBlock);
  const bool transforms = args.block.bias != nullptr || args.block.softcap > 0;
  launch_pdl(transforms ? logit_exponentials<true> : logit_exponentials<false>,
             {num_blocks(args.block.num_rows, 1), block}, stream, args);
  check_launch("linear_cross_entropy");
}

void d9d_launch_rescale_exponentials(const RescaleExponentialsArgs& args, CUstream_st* stream) {
  if (args.num_rows == 0 || args.num_columns == 0) return;
  launch_pdl(rescale_exponentials, {num_blocks(args.num_rows, 1), kBlockOfStatistics}, stream, args);
  check_launch("linear_cross_entropy");
}

void d9d_launch_finish_rows(const FinishRowsArgs& args, CUstream_st* stream) {
  if (args.num_rows == 0) return;
  launch_pdl(finish_rows, {num_blocks(args.num_rows, 1), kBlockOfStatistics}, stream, args);
  check_launch("linear_cross_entropy");
}

void d9d_launch_scale_rows(const ScaleRowsArgs& args, CUstream_st* stream) {
  if (args.num_rows == 0 || args.num_columns == 0) return;
  launch_pdl(scale_rows, {num_blocks(args.num_rows, 1), kBlockOfStatistics}, stream, args);
  check_launch("linear_cross_entropy");
}

}  // namespace d9d::kernels::detail
