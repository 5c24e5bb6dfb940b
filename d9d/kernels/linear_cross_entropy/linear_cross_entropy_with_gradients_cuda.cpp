#include <algorithm>

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>

#include "d9d/base/rounding.h"
#include "d9d/core/device/cuda_stream.h"
#include "d9d/kernels/linear/gemm.h"
#include "d9d/kernels/linear_cross_entropy/linear_cross_entropy_impl.h"
#include "d9d/kernels/linear_cross_entropy/logit_blocks.h"

namespace d9d::kernels::detail {
namespace {

constexpr std::int64_t kRowUnit = 8;               // chunks are multiples of this many rows, for aligned products
constexpr std::int64_t kWideLogits = 2048 * 8448;  // a product of 2048 rows and 8448 columns is four waves on an H200

// Processes a chunk of rows over the whole vocabulary.
class Chunk {
 public:
  Chunk(const LinearCrossEntropyInput& input, const LogitBlocks& logits, std::int64_t max_rows,
        const LinearCrossEntropyWanted& wanted)
      : input_(input),
        logits_(logits),
        statistics_(at::empty({kNumStatistics * max_rows}, logits.wide_options())),
        factor_(at::empty({max_rows}, logits.wide_options())),
        target_place_(at::empty({max_rows}, input.targets.options())),
        exponentials_(at::empty({max_rows, logits.padded_vocabulary()}, input.hidden().options())),
        reference_of_block_(
            at::empty({max_rows, static_cast<std::int64_t>(logits.columns().size())}, logits.wide_options())) {
    if (input.filter.eps > 0) threshold_ = at::empty({max_rows}, logits.wide_options());
    if (wanted.products.front().any_weight())
      scaled_hidden_ = at::empty({max_rows, input.hidden().size(1)}, input.hidden().options());
  }

  // Computes loss and lse of `rows`, the exponentials and the factors. The gradient of a logit is factor * exponential.
  void compute(const LogitRows& rows, LinearCrossEntropyForward& result) {
    rows_ = rows;
    for (std::size_t index = 0; index < logits_.columns().size(); ++index) compute_block(index);
    const at::Tensor of_ranks = input_.of_ranks(statistics());
    for (std::size_t split = 0; split < input_.weights().size(); ++split) rescale(split, of_ranks);
    launch_finish_rows({.num_rows = rows.size,
                        .hidden_size = input_.hidden().size(1),
                        .targets = targets(),
                        .reference = statistic(0),
                        .statistics = args_of(of_ranks),
                        .target_place = target_place_.const_data_ptr<std::int64_t>(),
                        .z_loss_weight = input_.z_loss_weight,
                        .softcap = input_.softcap.value_or(0),
                        .loss = result.loss.mutable_data_ptr<float>() + rows.begin,
                        .lse = result.lse.mutable_data_ptr<float>() + rows.begin,
                        .factor = factor_.mutable_data_ptr<float>(),
                        .exponentials = exponentials_.mutable_data_ptr(),
                        .exponentials_stride = exponentials_.stride(0),
                        .hidden = logits_.hidden(0, rows).const_data_ptr(),
                        .scaled_hidden = scaled_hidden_.defined() ? scaled_hidden_.mutable_data_ptr() : nullptr,
                        .filter_eps = input_.filter.eps,
                        .threshold = threshold_.defined() ? threshold_.mutable_data_ptr<float>() : nullptr},
                       stream());
  }

  // Clears the tiles of the exponentials that the filter leaves out.
  void clear_tiles() const {
    for (std::size_t split = 0; split < input_.weights().size(); ++split)
      clear_tiles_cuda_(exponentials(split), threshold_.narrow(0, 0, rows_.size));
  }

  // [rows, V_s] bf16: the gradients of the logits of a split, divided by the row's factor.
  [[nodiscard]] at::Tensor exponentials(std::size_t split) const {
    return exponentials_.narrow(0, 0, rows_.size)
        .narrow(1, logits_.split(split).padded_first, input_.weights()[split].size(0));
  }
  // [rows, H] bf16: hidden of a product times the row's factor. That of the first product is made by compute().
  [[nodiscard]] at::Tensor scaled_hidden(std::size_t product) const {
    if (product == 0) return scaled_hidden_.narrow(0, 0, rows_.size);
    const at::Tensor hidden = logits_.hidden(product, rows_);
    return (hidden * factor().unsqueeze(1)).to(hidden.scalar_type());
  }
  // [rows], fp32
  [[nodiscard]] at::Tensor factor() const { return factor_.narrow(0, 0, rows_.size); }

  // out = factor * values; values [rows, H] fp32, contiguous; out [rows, H] bf16.
  void scale(const at::Tensor& values, at::Tensor out) const {
    launch_scale_rows({.num_rows = values.size(0),
                       .num_columns = values.size(1),
                       .values = values.const_data_ptr<float>(),
                       .factor = factor_.const_data_ptr<float>(),
                       .out = out.mutable_data_ptr()},
                      stream());
  }

 private:
  [[nodiscard]] CUstream_st* stream() const { return current_cuda_stream(exponentials_.device()); }
  [[nodiscard]] const std::int64_t* targets() const {
    return input_.targets.const_data_ptr<std::int64_t>() + rows_.begin;
  }

  // [kNumStatistics, rows] fp32: reference, sum and target_logit over this rank's columns.
  [[nodiscard]] at::Tensor statistics() const {
    return statistics_.narrow(0, 0, kNumStatistics * rows_.size).view({kNumStatistics, rows_.size});
  }
  [[nodiscard]] float* statistic(std::int64_t index) const {
    return statistics_.mutable_data_ptr<float>() + index * rows_.size;
  }
  // of_ranks [W, kNumStatistics, rows]
  [[nodiscard]] static StatisticsOfRanks args_of(const at::Tensor& of_ranks) {
    return {.values = of_ranks.const_data_ptr(), .num_ranks = of_ranks.size(0)};
  }

  void compute_block(std::size_t index) {
    const ColumnRange& columns = logits_.columns()[index];
    launch_logit_exponentials({.block = logits_.compute(rows_, columns),
                               .is_first = index == 0,
                               .reference = statistic(0),
                               .sum = statistic(1),
                               .target_logit = statistic(2),
                               .exponentials = exponentials_.mutable_data_ptr(),
                               .exponentials_stride = exponentials_.stride(0),
                               .first_exponential = logits_.split(columns.split).padded_first + columns.begin,
                               .target_place = target_place_.mutable_data_ptr<std::int64_t>(),
                               .reference_of_block = reference_of_block_.mutable_data_ptr<float>() + index,
                               .reference_of_block_stride = reference_of_block_.stride(0)},
                              stream());
  }

  void rescale(std::size_t split, const at::Tensor& of_ranks) {
    const SplitColumns& columns = logits_.split(split);
    launch_rescale_exponentials(
        {.exponentials = static_cast<std::uint16_t*>(exponentials_.mutable_data_ptr()) + columns.padded_first,
         .row_stride = exponentials_.stride(0),
         .num_rows = rows_.size,
         .num_columns = input_.weights()[split].size(0),
         .block_columns = columns.block_size,
         .targets = targets(),
         .reference = statistic(0),
         .statistics = args_of(of_ranks),
         .reference_of_block = reference_of_block_.const_data_ptr<float>() + columns.first_block,
         .reference_of_block_stride = reference_of_block_.stride(0)},
        stream());
  }

  const LinearCrossEntropyInput& input_;
  const LogitBlocks& logits_;
  at::Tensor statistics_;
  at::Tensor factor_;
  at::Tensor target_place_;
  at::Tensor exponentials_;        // [rows, padded vocabulary] bf16
  at::Tensor reference_of_block_;  // [rows, blocks] fp32
  at::Tensor scaled_hidden_;
  at::Tensor threshold_;  // [rows] fp32, undefined without a filter
  LogitRows rows_ = {};
};

// Sums of factor * exponential over rows. Each factor is split into the sum of two bf16 numbers, so that a bf16 matrix
// product computes the sums.
at::Tensor weighted_sum(const at::Tensor& factor, const at::Tensor& exponentials) {
  const at::Tensor coarse = factor.to(at::kBFloat16);
  const at::Tensor fine = (factor - coarse).to(at::kBFloat16);
  at::Tensor sums = at::empty({2, exponentials.size(1)}, factor.options());
  multiply(sums, at::stack({coarse, fine}), exponentials);
  return sums.sum(0);
}

}  // namespace

LogitChunks chunks_with_gradients(const LinearCrossEntropyInput& input) {
  std::int64_t vocabulary = 0;
  for (const at::Tensor& weight : input.weights()) vocabulary += round_up(weight.size(0), kColumnUnit);
  if (input.shard) vocabulary = round_up(input.shard->most_rows, kColumnUnit);
  const std::int64_t num_rows = std::max<std::int64_t>(input.hidden().size(0), 1);
  const std::int64_t most_rows = std::clamp<std::int64_t>(input.chunk_size / vocabulary, 1, num_rows);
  const std::int64_t chunk_rows = round_up(divide_up(num_rows, divide_up(num_rows, most_rows)), kRowUnit);
  return {.num_rows = chunk_rows, .num_columns = std::max(kColumnUnit, kWideLogits / chunk_rows)};
}

namespace {

// The numbers of a product for the gradient of hidden of a chunk, in fp32.
std::int64_t numbers_for_hidden(const LinearCrossEntropyInput& input, const LinearCrossEntropyWanted& wanted,
                                std::int64_t chunk_rows) {
  std::int64_t numbers = 0;
  for (std::size_t product = 0; product < input.products.size(); ++product) {
    if (wanted.products[product].hidden)
      numbers = std::max(numbers, chunk_rows * input.products[product].hidden.size(1));
  }
  return numbers;
}

// For tensors without values: allocates the memory that the kernels would need for a chunk, and returns what they would
// return.
LinearCrossEntropyWithGradients without_values(const LinearCrossEntropyInput& input,
                                               const LinearCrossEntropyWanted& wanted, const LogitChunks& chunks) {
  const std::int64_t num_rows = input.hidden().size(0), chunk_rows = std::min(chunks.num_rows, num_rows);
  const LogitBlocks logits(input, chunks, numbers_for_hidden(input, wanted, chunk_rows));
  const Chunk chunk(input, logits, chunk_rows, wanted);
  const at::Tensor loss = at::empty({num_rows}, logits.wide_options());
  const at::ScalarType weight_dtype = logits.rows().size() > 1 ? at::kFloat : at::kBFloat16;
  return {.forward = {.loss = loss, .lse = at::empty_like(loss)},
          .backward = empty_gradients(input, wanted, weight_dtype)};
}

}  // namespace

LinearCrossEntropyWithGradients linear_cross_entropy_with_gradients_cuda(const LinearCrossEntropyInput& input,
                                                                         const LinearCrossEntropyWanted& wanted,
                                                                         const LogitChunks& chunks) {
  if (input.hidden().is_meta()) return without_values(input, wanted, chunks);
  const c10::DeviceGuard guard(input.hidden().device());
  const std::int64_t num_rows = input.hidden().size(0);
  const std::int64_t chunk_rows = std::min(chunks.num_rows, num_rows);
  // The buffer of fp32 logits is reused for the gradient of hidden in fp32, so it must be large enough for it.
  const LogitBlocks logits(input, chunks, numbers_for_hidden(input, wanted, chunk_rows));
  // A single product rounds its fp32 sums once, to bf16. Several products are accumulated in fp32, which takes 2 bytes
  // more per weight.
  const at::ScalarType weight_dtype = logits.rows().size() > 1 ? at::kFloat : at::kBFloat16;
  LinearCrossEntropyWithGradients result{.forward = {.loss = at::empty({num_rows}, logits.wide_options()),
                                                     .lse = at::empty({num_rows}, logits.wide_options())},
                                         .backward = empty_gradients(input, wanted, weight_dtype)};
  Chunk chunk(input, logits, chunk_rows, wanted);
  std::vector<std::size_t> splits;  // those with rows
  for (std::size_t split = 0; split < input.weights().size(); ++split)
    if (input.weights()[split].size(0) > 0) splits.push_back(split);
  for (const LogitRows& rows : logits.rows()) {
    chunk.compute(rows, result.forward);
    for (const std::size_t split : splits) {
      if (wanted.bias)
        result.backward.bias.narrow(0, logits.split(split).first, input.weights()[split].size(0))
            .add_(weighted_sum(chunk.factor(), chunk.exponentials(split)));
    }
    const auto of_hidden = [&] {
      for (std::size_t product = 0; product < input.products.size(); ++product) {
        if (!wanted.products[product].hidden) continue;
        const at::Tensor gradient = result.backward.products[product].hidden.narrow(0, rows.begin, rows.size);
        // divided by the row's factor
        const at::Tensor sum = logits.buffer().narrow(0, 0, gradient.numel()).view(gradient.sizes());
        for (const std::size_t split : splits) {
          const at::Tensor exponentials = chunk.exponentials(split), &weight = input.products[product].weights[split];
          split == splits.front() ? multiply(sum, exponentials, weight) : accumulate(sum, exponentials, weight);
        }
        chunk.scale(sum, gradient);
      }
    };
    const auto of_weights = [&] {
      for (std::size_t product = 0; product < input.products.size(); ++product) {
        if (!wanted.products[product].any_weight()) continue;
        const at::Tensor hidden = chunk.scaled_hidden(product);
        for (const std::size_t split : splits) {
          const at::Tensor exponentials = chunk.exponentials(split).t();
          const at::Tensor& gradient = result.backward.products[product].weights[split];
          if (!gradient.defined()) continue;
          rows.begin == 0 ? multiply(gradient, exponentials, hidden) : accumulate(gradient, exponentials, hidden);
        }
      }
    };
    around_filter(
        input.filter, [&] { chunk.clear_tiles(); }, of_hidden, of_weights);
  }
  if (wanted.bias) result.backward.bias = result.backward.bias.to(input.bias.scalar_type());
  return result;
}

}  // namespace d9d::kernels::detail
