#include <algorithm>
#include <limits>
#include <optional>

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>

#include "d9d/base/check.h"
#include "d9d/core/device/cuda_stream.h"
#include "d9d/kernels/common/cuda_kernels.h"
#include "d9d/kernels/linear/gemm.h"
#include "d9d/kernels/linear_cross_entropy/linear_cross_entropy_impl.h"
#include "d9d/kernels/linear_cross_entropy/logit_blocks.h"

namespace d9d::kernels::detail {
namespace {

constexpr std::int64_t kMaxChunkRows = 8192;  // more do not make products faster

// Chunks have many rows, so that the gradient of a weight is the sum of few products.
LogitChunks chunks_of(const LinearCrossEntropyInput& input) {
  const std::int64_t num_rows =
      std::clamp<std::int64_t>(input.hidden().size(0), 1, std::min(kMaxChunkRows, input.chunk_size));
  return {.num_rows = num_rows, .num_columns = std::max(kColumnUnit, input.chunk_size / num_rows)};
}

void* data_of_rows(const at::Tensor& tensor, const LogitRows& range) {
  return tensor.defined() ? tensor.narrow(0, range.begin, range.size).data_ptr() : nullptr;
}

// [kNumStatistics, rows]: max, sum and target_logit, which are updated block by block.
at::Tensor no_statistics(std::int64_t num_rows, const at::TensorOptions& options) {
  at::Tensor statistics = at::empty({kNumStatistics, num_rows}, options);
  statistics[0].fill_(-std::numeric_limits<double>::infinity());
  statistics[1].zero_();
  statistics[2].fill_(std::numeric_limits<double>::quiet_NaN());
  return statistics;
}

// The arguments that update the statistics of the rows `range` with a block.
LogitStatisticsArgs statistics_args(const LogitBlock& block, const at::Tensor& statistics, const LogitRows& range) {
  return {.block = block,
          .max = data_of_rows(statistics[0], range),
          .sum = data_of_rows(statistics[1], range),
          .target_logit = data_of_rows(statistics[2], range)};
}

// The gradient of some rows of a weight: the sum of the products of all chunks, in at least fp32 and rounded once. If
// the destination is wide enough for that, products are summed there, without a further buffer.
class WeightGradient {
 public:
  WeightGradient(const GradientPlace& place, const LogitBlocks& logits, at::ScalarType dtype) : place_(place) {
    const at::ScalarType own = place.tensor.scalar_type(), wide = logits.wide_options().dtype().toScalarType();
    const bool is_rounded_by_product = own == dtype && logits.rows().size() == 1 && !place.has_values;
    is_in_place_ = own == wide || is_rounded_by_product;
    sum_ = is_in_place_ ? place.tensor : at::empty(place.tensor.sizes(), logits.wide_options());
    has_values_ = is_in_place_ && place.has_values;
  }

  void add(const at::Tensor& grad_logits, const at::Tensor& hidden) {
    has_values_ ? accumulate(sum_, grad_logits.t(), hidden) : multiply(sum_, grad_logits.t(), hidden);
    has_values_ = true;
  }

  // Writes the gradient to its place.
  void finish() const {
    if (!has_values_) sum_.zero_();  // there were no rows
    if (!is_in_place_) place_.put(sum_);
  }

 private:
  GradientPlace place_;
  at::Tensor sum_;
  bool is_in_place_ = false;
  bool has_values_ = false;  // sum_ has values to add to
};

// Sums the gradients of the factors of a product, one range of columns after another. Borrows its arguments.
class FactorGradients {
 public:
  FactorGradients(const LogitBlocks& logits, std::size_t product, const WantedOfFactors& wanted,
                  const LogitFactors& result)
      : logits_(logits), product_(product), wanted_(wanted), result_(result) {
    if (wanted.hidden) grad_hidden_ = at::zeros(result.hidden.sizes(), logits.wide_options());
  }

  [[nodiscard]] bool needs(const ColumnRange& columns) const {
    return wanted_.hidden || wanted_.weights[columns.split];
  }
  void begin(const ColumnRange& columns) {
    grad_weight_.reset();
    if (!wanted_.weights[columns.split]) return;
    grad_weight_.emplace(rows_of_place(weight_place(wanted_, result_, columns.split), columns.begin, columns.size),
                         logits_, logits_.hidden_dtype());
  }
  void add_of_hidden(const at::Tensor& grad_logits, const LogitRows& rows, const ColumnRange& columns) const {
    if (!wanted_.hidden) return;
    accumulate(grad_hidden_.narrow(0, rows.begin, rows.size), grad_logits, logits_.weight(product_, columns));
  }
  void add_of_weight(const at::Tensor& grad_logits, const LogitRows& rows) {
    if (grad_weight_) grad_weight_->add(grad_logits, logits_.hidden(product_, rows));
  }
  void finish() const {
    if (grad_weight_) grad_weight_->finish();
  }
  // After the last columns.
  void finish_hidden() const {
    if (wanted_.hidden) result_.hidden.copy_(grad_hidden_);
  }

 private:
  const LogitBlocks& logits_;
  const std::size_t product_;
  const WantedOfFactors& wanted_;
  const LogitFactors& result_;
  at::Tensor grad_hidden_;
  std::optional<WeightGradient> grad_weight_;  // of the columns
};

// Computes the losses and lse of all rows from the final statistics of all ranks, [W, kNumStatistics, rows].
void compute_losses(const LinearCrossEntropyInput& input, const at::Tensor& statistics,
                    LinearCrossEntropyForward& result) {
  launch_cross_entropy_loss({.dtype = dtype_of(input.hidden()),
                             .num_rows = input.hidden().size(0),
                             .targets = input.targets.const_data_ptr<std::int64_t>(),
                             .statistics = {.values = statistics.const_data_ptr(), .num_ranks = statistics.size(0)},
                             .z_loss_weight = input.z_loss_weight,
                             .loss = result.loss.mutable_data_ptr(),
                             .lse = result.lse.mutable_data_ptr()},
                            current_cuda_stream(input.hidden().device()));
}

}  // namespace

at::Tensor checked_targets_cuda(const at::Tensor& targets, std::int64_t ignore_index, std::int64_t vocabulary) {
  const c10::DeviceGuard guard(targets.device());
  const at::Tensor ids = targets.contiguous();
  at::Tensor rows = at::empty(ids.sizes(), ids.options());
  launch_check_targets({.targets = ids.const_data_ptr<std::int64_t>(),
                        .rows = rows.mutable_data_ptr<std::int64_t>(),
                        .size = ids.numel(),
                        .ignore_index = ignore_index,
                        .vocabulary = vocabulary},
                       current_cuda_stream(ids.device()));
  return rows;
}

LinearCrossEntropyForward linear_cross_entropy_forward_cuda(const LinearCrossEntropyInput& input) {
  const c10::DeviceGuard guard(input.hidden().device());
  const LogitBlocks logits(input, chunks_of(input));
  const std::int64_t num_rows = input.hidden().size(0);
  const at::Tensor statistics = no_statistics(num_rows, logits.wide_options());
  for (const ColumnRange& columns : logits.columns()) {
    for (const LogitRows& rows : logits.rows()) {
      launch_logit_statistics(statistics_args(logits.compute(rows, columns), statistics, rows),
                              current_cuda_stream(input.hidden().device()));
    }
  }
  LinearCrossEntropyForward result{.loss = at::empty({num_rows}, logits.wide_options()),
                                   .lse = at::empty({num_rows}, logits.wide_options())};
  compute_losses(input, input.of_ranks(statistics), result);
  return result;
}

LinearCrossEntropyBackward linear_cross_entropy_backward_cuda(const LinearCrossEntropyInput& input,
                                                              const at::Tensor& lse, const at::Tensor& grad_loss,
                                                              const at::Tensor& grad_lse,
                                                              const LinearCrossEntropyWanted& wanted) {
  const c10::DeviceGuard guard(input.hidden().device());
  const LogitBlocks logits(input, chunks_of(input));
  LinearCrossEntropyBackward result = empty_gradients(input, wanted, input.hidden().scalar_type());
  std::vector<FactorGradients> gradients;
  for (std::size_t product = 0; product < input.products.size(); ++product)
    gradients.emplace_back(logits, product, wanted.products[product], result.products[product]);
  const bool is_filtered = input.filter.eps > 0;
  const at::Tensor thresholds = is_filtered ? at::empty({input.hidden().size(0)}, logits.wide_options()) : at::Tensor();
  for (const ColumnRange& columns : logits.columns()) {
    const auto needs = [&](const FactorGradients& of_product) { return of_product.needs(columns); };
    if (!wanted.bias && std::ranges::none_of(gradients, needs)) continue;
    for (FactorGradients& of_product : gradients) of_product.begin(columns);
    for (const LogitRows& rows : logits.rows()) {
      launch_logit_gradient({.block = logits.compute(rows, columns),
                             .lse = data_of_rows(lse, rows),
                             .grad_loss = data_of_rows(grad_loss, rows),
                             .grad_loss_stride = grad_loss.defined() ? grad_loss.stride(0) : 0,
                             .grad_lse = data_of_rows(grad_lse, rows),
                             .grad_lse_stride = grad_lse.defined() ? grad_lse.stride(0) : 0,
                             .z_loss_weight = input.z_loss_weight,
                             .filter_eps = input.filter.eps,
                             .threshold = data_of_rows(thresholds, rows)},
                            current_cuda_stream(input.hidden().device()));
      const at::Tensor grad_logits = logits.gradient(rows, columns);
      if (wanted.bias)
        result.bias.narrow(0, logits.split(columns.split).first + columns.begin, columns.size)
            .add_(grad_logits.sum(0, false, result.bias.scalar_type()));
      around_filter(
          input.filter, [&] { clear_tiles_cuda_(grad_logits, thresholds.narrow(0, rows.begin, rows.size)); },
          [&] {
            for (const FactorGradients& of_product : gradients) of_product.add_of_hidden(grad_logits, rows, columns);
          },
          [&] {
            for (FactorGradients& of_product : gradients) of_product.add_of_weight(grad_logits, rows);
          });
    }
    for (const FactorGradients& of_product : gradients) of_product.finish();
  }
  for (const FactorGradients& of_product : gradients) of_product.finish_hidden();
  if (wanted.bias) result.bias = result.bias.to(input.bias.scalar_type());
  return result;
}

void clear_tiles_cuda_(const at::Tensor& values, const at::Tensor& threshold) {
  const c10::DeviceGuard guard(values.device());
  launch_clear_tiles({.dtype = dtype_of(values),
                      .values = values.mutable_data_ptr(),
                      .row_stride = values.stride(0),
                      .num_rows = values.size(0),
                      .num_columns = values.size(1),
                      .threshold = threshold.const_data_ptr()},
                     current_cuda_stream(values.device()));
}

void scale_cuda_(const at::Tensor& gradient, const at::Tensor& factor) {
  const c10::DeviceGuard guard(gradient.device());
  launch_scale(
      {.values = gradient.mutable_data_ptr(), .size = gradient.numel(), .factor = factor.const_data_ptr<float>()},
      current_cuda_stream(gradient.device()));
}

void put_scaled_cuda(const GradientPlace& place, const at::Tensor& values, const at::Tensor& factor) {
  const auto is_narrow_or_float = [](const at::Tensor& x) {
    return x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kFloat;
  };
  D9D_ASSERT(is_narrow_or_float(values), "gradients made in forward are bf16 or fp32, not ", values.scalar_type());
  if (!is_narrow_or_float(place.tensor)) return place.put(values * factor);
  const c10::DeviceGuard guard(values.device());
  launch_put_scaled({.out_dtype = dtype_of(place.tensor),
                     .values_dtype = dtype_of(values),
                     .out = place.tensor.mutable_data_ptr(),
                     .values = values.const_data_ptr(),
                     .size = values.numel(),
                     .adds = place.has_values,
                     .factor = factor.const_data_ptr<float>()},
                    current_cuda_stream(values.device()));
}

}  // namespace d9d::kernels::detail
