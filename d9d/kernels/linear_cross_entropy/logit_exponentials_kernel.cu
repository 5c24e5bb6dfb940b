#include "d9d/kernels/linear_cross_entropy/logit_rows.cuh"

namespace d9d::kernels::detail {
namespace {

template <int kTiles>
__global__ void __launch_bounds__(kBlockOfStatistics) logit_exponentials(const LogitExponentialsArgs args) {
  wait_for_kernel_before();
  __shared__ float scratch[kWarpSize];
  const LogitBlock& block = args.block;
  const std::int64_t row = blockIdx.x;
  const std::int64_t target = block.targets[row];
  auto* const exponentials =
      static_cast<__nv_bfloat16*>(args.exponentials) + row * args.exponentials_stride + args.first_exponential;
  if (target == kIgnored) {
    for (std::int64_t column = threadIdx.x * kGroup; column < block.num_columns; column += kTileOfStatistics)
      *reinterpret_cast<Group<__nv_bfloat16>*>(exponentials + column) = Group<__nv_bfloat16>{};
    return;
  }
  const LogitRow<__nv_bfloat16, kTiles> logits(block, row);
  const float reference_so_far = args.is_first ? -kInfinity<float> : args.reference[row];
  const float greatest = logits.greatest(scratch);
  const float reference = greatest > reference_so_far + kMaxAboveReference ? greatest : reference_so_far;
  float sum = 0;
  logits.for_each([&](const float(&z)[kGroup], std::int64_t column) {
    float values[kGroup];
#pragma unroll
    for (int j = 0; j < kGroup; ++j) {
      const float exponential = __expf(z[j] - reference);
      sum += exponential;
      values[j] = exponential;
      if (block.softcap > 0 && exponential > 0) values[j] *= slope(z[j], block.softcap);
    }
    store_packed(pack<__nv_bfloat16>(values), exponentials + column);
  });
  sum = block_sum(sum, scratch);

  if (threadIdx.x != 0) return;
  const std::int64_t target_column = target - block.first_column;
  if (target_column >= 0 && target_column < block.num_columns) {
    args.target_logit[row] = logits.at(target_column);
    args.target_place[row] = args.first_exponential + target_column;
  } else if (args.is_first) {
    args.target_logit[row] = nanf("");
    args.target_place[row] = -1;
  }
  const float sum_so_far = args.is_first ? 0 : args.sum[row];
  args.sum[row] = sum_so_far * expf(reference_so_far - reference) + sum;
  args.reference[row] = reference;
  args.reference_of_block[row * args.reference_of_block_stride] = reference;
}

// A block of threads a row, which most often has nothing to do.
__global__ void __launch_bounds__(kBlockOfStatistics) rescale_exponentials(const RescaleExponentialsArgs args) {
  wait_for_kernel_before();
  const std::int64_t row = blockIdx.x;
  if (args.targets[row] == kIgnored) return;
  const float reference = args.reference[row];
  const float* const of_block = args.reference_of_block + row * args.reference_of_block_stride;
  const std::int64_t num_blocks = (args.num_columns + args.block_columns - 1) / args.block_columns;
  auto* const exponentials = static_cast<__nv_bfloat16*>(args.exponentials) + row * args.row_stride;
  for (std::int64_t block = 0; block < num_blocks; ++block) {
    if (of_block[block] == reference) continue;
    const float scale = expf(of_block[block] - reference);
    const std::int64_t end = min(args.num_columns, (block + 1) * args.block_columns);
    for (std::int64_t column = block * args.block_columns + threadIdx.x; column < end; column += kBlockOfStatistics)
      exponentials[column] = narrow<__nv_bfloat16>(widen(exponentials[column]) * scale);
  }
}

// A factor of 0 would leave no exponential that gives the target's gradient.
constexpr float kLeastSoftmaxFactor = 1e-6F;

__global__ void __launch_bounds__(kBlockOfStatistics) finish_rows(const FinishRowsArgs args) {
  wait_for_kernel_before();
  const std::int64_t row = blockIdx.x;
  const bool is_ignored = args.targets[row] == kIgnored;
  const float sum = args.sum[row];
  const float lse = is_ignored ? 0 : args.reference[row] + logf(sum);
  float by_softmax = 1 + 2 * static_cast<float>(args.z_loss_weight) * lse;
  if (fabsf(by_softmax) < kLeastSoftmaxFactor) by_softmax = kLeastSoftmaxFactor;
  const float factor = is_ignored ? 0 : by_softmax / sum;
  if (threadIdx.x == 0) {
    const float target_logit = args.target_logit[row];
    args.loss[row] = is_ignored ? 0 : lse - target_logit + static_cast<float>(args.z_loss_weight) * lse * lse;
    args.lse[row] = lse;
    args.factor[row] = factor;
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
    using P = Elements<__nv_bfloat16, kCount>;
    for (std::int64_t i = threadIdx.x; i < args.hidden_size / kCount; i += kBlockOfStatistics) {
      P values = reinterpret_cast<const P*>(hidden)[i];
#pragma unroll
      for (int j = 0; j < kCount; ++j) values.value[j] = narrow<__nv_bfloat16>(widen(values.value[j]) * factor);
      reinterpret_cast<P*>(scaled)[i] = values;
    }
  };
  const bool is_aligned = args.hidden_size % kGroup == 0 && reinterpret_cast<std::uintptr_t>(args.hidden) % 16 == 0;
  is_aligned ? scale(std::integral_constant<int, kGroup>()) : scale(std::integral_constant<int, 1>());
}

// A block of threads a row.
__global__ void __launch_bounds__(kBlockOfStatistics) scale_rows(const ScaleRowsArgs args) {
  wait_for_kernel_before();
  const std::int64_t row = blockIdx.x;
  const float factor = args.factor[row];
  const float* const values = args.values + row * args.num_columns;
  auto* const out = static_cast<__nv_bfloat16*>(args.out) + row * args.num_columns;
  const auto scale = [&](auto piece) {
    constexpr int kCount = decltype(piece)::value;
    for (std::int64_t i = threadIdx.x; i < args.num_columns / kCount; i += kBlockOfStatistics) {
      const auto read = reinterpret_cast<const Elements<float, kCount>*>(values)[i];
      Elements<__nv_bfloat16, kCount> scaled;
#pragma unroll
      for (int j = 0; j < kCount; ++j) scaled.value[j] = narrow<__nv_bfloat16>(read.value[j] * factor);
      reinterpret_cast<Elements<__nv_bfloat16, kCount>*>(out)[i] = scaled;
    }
  };
  args.num_columns % 4 == 0 ? scale(std::integral_constant<int, 4>()) : scale(std::integral_constant<int, 1>());
}

}  // namespace

void launch_logit_exponentials(const LogitExponentialsArgs& args, CUstream_st* stream) {
  if (args.block.num_rows == 0 || args.block.num_columns == 0) return;
  const auto launch = [&](void (*kernel)(LogitExponentialsArgs)) {
    launch_after(kernel, {num_blocks(args.block.num_rows, 1), kBlockOfStatistics}, stream, args);
  };
  switch (num_blocks(args.block.num_columns, kTileOfStatistics)) {
    case 1:
      launch(logit_exponentials<1>);
      break;
    case 2:
      launch(logit_exponentials<2>);
      break;
    case 3:
      launch(logit_exponentials<3>);
      break;
    default:
      launch(logit_exponentials<4>);
  }
  check_launch("linear_cross_entropy");
}

void launch_rescale_exponentials(const RescaleExponentialsArgs& args, CUstream_st* stream) {
  if (args.num_rows == 0 || args.num_columns == 0) return;
  launch_after(rescale_exponentials, {num_blocks(args.num_rows, 1), kBlockOfStatistics}, stream, args);
  check_launch("linear_cross_entropy");
}

void launch_finish_rows(const FinishRowsArgs& args, CUstream_st* stream) {
  if (args.num_rows == 0) return;
  launch_after(finish_rows, {num_blocks(args.num_rows, 1), kBlockOfStatistics}, stream, args);
  check_launch("linear_cross_entropy");
}

void launch_scale_rows(const ScaleRowsArgs& args, CUstream_st* stream) {
  if (args.num_rows == 0 || args.num_columns == 0) return;
  launch_after(scale_rows, {num_blocks(args.num_rows, 1), kBlockOfStatistics}, stream, args);
  check_launch("linear_cross_entropy");
}

}  // namespace d9d::kernels::detail
