#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>

#include "d9d/core/device/cuda_stream.h"
#include "d9d/kernels/linear_cross_entropy/linear_cross_entropy_cuda.h"

namespace d9d::kernels::detail {
namespace {

constexpr std::int64_t kRowUnit = 8;                         // of aligned products
constexpr std::int64_t kWideLogits = std::int64_t{1} << 23;  // 32 MiB of an L2 cache of 50

std::int64_t divide_up(std::int64_t size, std::int64_t by) { return (size + by - 1) / by; }
std::int64_t round_up(std::int64_t size, std::int64_t unit) { return divide_up(size, unit) * unit; }

// The exponentials of some rows over the whole vocabulary, which gradients of logits replace.
struct PackedLogits {
  at::Tensor rows;  // [chunk rows, padded vocabulary] bf16
  at::Tensor max;   // [chunk rows, blocks] fp32

  PackedLogits(const LogitBlocks& logits, std::int64_t num_rows)
      : rows(at::empty({num_rows, logits.padded_vocabulary()}, logits.wide_options().dtype(at::kBFloat16))),
        max(at::empty({num_rows, static_cast<std::int64_t>(logits.columns().size())}, logits.wide_options())) {}

  std::uint16_t* from_column(std::int64_t column) const {
    return static_cast<std::uint16_t*>(rows.mutable_data_ptr()) + column;
  }
};

void compute_exponentials(const LogitBlocks& logits, const RowStatistics& statistics, const RowRange& rows,
                          PackedLogits& packed) {
  for (std::size_t index = 0; index < logits.columns().size(); ++index) {
    const ColumnRange& columns = logits.columns()[index];
    LogitStatisticsArgs args = statistics_args(logits.compute(rows, columns), statistics, rows);
    args.packed = packed.from_column(logits.split(columns.split).padded_first + columns.begin);
    args.packed_stride = packed.rows.stride(0);
    args.packed_max = packed.max.mutable_data_ptr<float>() + index;
    args.packed_max_stride = packed.max.stride(0);
    launch_logit_statistics(args, current_cuda_stream(packed.rows.device()));
  }
}

// Returns [rows, V_s] bf16, a view of `packed`.
at::Tensor compute_gradient(const LinearCrossEntropyInput& input, const RowStatistics& statistics,
                            const at::Tensor& lse, const RowRange& rows, const SplitColumns& split,
                            std::int64_t num_columns, PackedLogits& packed) {
  launch_packed_logit_gradient({.packed = packed.from_column(split.padded_first),
                                .row_stride = packed.rows.stride(0),
                                .num_rows = rows.size,
                                .num_columns = num_columns,
                                .block_columns = split.block_size,
                                .first_column = split.first,
                                .softcap = input.softcap.value_or(0),
                                .targets = input.targets.const_data_ptr<std::int64_t>() + rows.begin,
                                .packed_max = packed.max.const_data_ptr<float>() + split.first_block,
                                .packed_max_stride = packed.max.stride(0),
                                .lse = lse.const_data_ptr<float>() + rows.begin,
                                .target_logit = statistics.target_logit.const_data_ptr<float>() + rows.begin,
                                .z_loss_weight = input.z_loss_weight},
                               current_cuda_stream(packed.rows.device()));
  return packed.rows.narrow(0, 0, rows.size).narrow(1, split.padded_first, num_columns);
}

}  // namespace

LogitChunks chunks_with_gradients(const LinearCrossEntropyInput& input) {
  std::int64_t vocabulary = 0;
  for (const at::Tensor& weight : input.weights) vocabulary += round_up(weight.size(0), kColumnUnit);
  const std::int64_t num_rows = std::max<std::int64_t>(input.hidden.size(0), 1);
  const std::int64_t most_rows = std::clamp<std::int64_t>(input.chunk_size / vocabulary, 1, num_rows);
  const std::int64_t chunk_rows = round_up(divide_up(num_rows, divide_up(num_rows, most_rows)), kRowUnit);
  return {.num_rows = chunk_rows, .num_columns = std::max(kColumnUnit, kWideLogits / chunk_rows)};
}

LinearCrossEntropyWithGradients linear_cross_entropy_with_gradients_cuda(const LinearCrossEntropyInput& input,
                                                                         const LinearCrossEntropyWanted& wanted,
                                                                         const LogitChunks& chunks) {
  const c10::DeviceGuard guard(input.hidden.device());
  const std::int64_t num_rows = input.hidden.size(0);
  const std::int64_t hidden_size = input.hidden.size(1);
  const std::int64_t chunk_rows = std::min(chunks.num_rows, num_rows);
  // What is left of the logits in fp32 makes room for the gradient of hidden in fp32.
  const LogitBlocks logits(input, chunks, wanted.hidden ? chunk_rows * hidden_size : 0);
  const RowStatistics statistics = no_statistics(num_rows, logits.wide_options());
  PackedLogits packed(logits, chunk_rows);
  LinearCrossEntropyWithGradients result{
      .forward = {.loss = at::empty_like(statistics.max), .lse = at::empty_like(statistics.max)},
      .backward = empty_gradients(input, wanted)};
  if (num_rows == 0) {
    for (const at::Tensor& grad : result.backward.weights)
      if (grad.defined()) grad.zero_();
  }
  for (const RowRange& rows : logits.rows()) {
    compute_exponentials(logits, statistics, rows, packed);
    compute_losses(input, statistics, rows, result.forward);
    at::Tensor grad_hidden;
    for (std::size_t split = 0; split < input.weights.size(); ++split) {
      const at::Tensor& weight = input.weights[split];
      if (weight.size(0) == 0) continue;
      const SplitColumns& columns = logits.split(split);
      const at::Tensor grad_logits =
          compute_gradient(input, statistics, result.forward.lse, rows, columns, weight.size(0), packed);
      if (wanted.hidden && !grad_hidden.defined()) {
        grad_hidden = logits.buffer().narrow(0, 0, rows.size * hidden_size).view({rows.size, hidden_size});
        multiply(grad_hidden, grad_logits, weight);
      } else if (wanted.hidden) {
        accumulate(grad_hidden, grad_logits, weight);
      }
      const at::Tensor& grad_weight = result.backward.weights[split];
      if (grad_weight.defined() && rows.begin == 0) multiply(grad_weight, grad_logits.t(), logits.hidden(rows));
      if (grad_weight.defined() && rows.begin > 0) accumulate(grad_weight, grad_logits.t(), logits.hidden(rows));
      if (wanted.bias)
        result.backward.bias.narrow(0, columns.first, weight.size(0)).add_(grad_logits.sum(0, false, at::kFloat));
    }
    if (wanted.hidden) result.backward.hidden.narrow(0, rows.begin, rows.size).copy_(grad_hidden);
  }
  if (wanted.bias) result.backward.bias = result.backward.bias.to(input.bias.scalar_type());
  return result;
}

}  // namespace d9d::kernels::detail
