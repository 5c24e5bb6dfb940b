// linear_cross_entropy on a GPU: with gradients computed in forward, with logits computed again in backward, as a
// composition of ATen operators, with dense logits, and the three matrix products alone; with and without the gradient
// filter for softmaxes as in training.
#include <cmath>
#include <iostream>

#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>
#include <torch/csrc/autograd/autograd.h>

#include "d9d/base/check.h"
#include "d9d/core/autograd/leaf_gradient.h"
#include "d9d/core/device/cuda_stream.h"
#include "d9d/kernels/linear_cross_entropy/linear_cross_entropy.h"
#include "d9d/kernels/linear_cross_entropy/linear_cross_entropy_impl.h"
#include "d9d/kernels/linear_cross_entropy/linear_cross_entropy_preset.h"

#include "benchmarks/device/device_table.h"

namespace d9d::benchmarks {
namespace {

struct Shape {
  std::int64_t rows;
  std::int64_t hidden;
  std::int64_t vocabulary;
  bool sweeps_chunks;
};

struct Inputs {
  at::Tensor hidden;
  at::Tensor weight;
  at::Tensor targets;
};

class Measurement {
 public:
  Measurement(DeviceTable& table, const Shape& shape, const Inputs& inputs)
      : table_(table), shape_(shape), inputs_(inputs) {}

  // products: the number of matrix products, of the size of the logits' one, that count as work. The implementation's
  // name is printed with the memory that it takes beyond inputs and gradients.
  void operator()(const std::string& implementation, double products, const std::function<void()>& work) const {
    at::accelerator::emptyCache();
    at::accelerator::resetPeakStats(0);
    const auto stats = [] { return at::accelerator::getDeviceStats(0).allocated_bytes[0]; };
    const std::int64_t before = stats().current;
    work();
    const auto gradients = (inputs_.hidden.numel() + inputs_.weight.numel()) * 2;
    const double extra = static_cast<double>(stats().peak - before - gradients) / (1 << 30);
    const double flop = products * 2 * static_cast<double>(shape_.rows) * static_cast<double>(shape_.hidden) *
                        static_cast<double>(shape_.vocabulary);
    table_.measure({.operation = "linear_cross_entropy fwd+bwd",
                    .shape = cat("T", shape_.rows, " H", shape_.hidden, " V", shape_.vocabulary, " bf16"),
                    .implementation = cat(implementation, ", ", static_cast<int>(extra * 1000) / 1000.0, " GiB extra"),
                    .flop = flop},
                   [&](std::int64_t) { work(); });
  }

 private:
  DeviceTable& table_;
  const Shape& shape_;
  const Inputs& inputs_;
};

void backward_of_sum(const at::Tensor& loss, const Inputs& inputs) {
  (void)torch::autograd::grad({loss.sum()}, {inputs.hidden, inputs.weight}, {});
}

// Numbers in (-scale, scale), determined by position.
at::Tensor numbers(const DeviceTable& table, at::IntArrayRef sizes, double scale) {
  const auto numel = c10::multiply_integers(sizes);
  return at::arange(numel, table.device().dtype(at::kFloat))
      .sin_()
      .mul_(1e3)
      .frac_()
      .mul_(scale)
      .to(at::kBFloat16)
      .view(sizes);
}

// Softmaxes as in training: nine tenths of each are on 32 tokens, the k-th of them in proportion to k^-1.5, of which
// frequent ones, with low ids, are drawn more often; the rest is spread over the vocabulary.
Inputs peaked_inputs(const DeviceTable& table, const Shape& shape) {
  const at::Tensor weight = numbers(table, {shape.vocabulary, shape.hidden}, 0.05).abs_().mul_(2).sub_(0.05);
  const double squares = static_cast<double>(shape.hidden) * 0.05 * 0.05 / 3;  // of a row of the weight
  at::Tensor hidden = at::zeros({shape.rows, shape.hidden}, table.device());
  at::Tensor targets;
  for (std::int64_t k = 1; k <= 32; ++k) {
    const at::Tensor places = at::arange(shape.rows, table.device().dtype(at::kFloat)).add_(k * shape.rows);
    const at::Tensor uniform = places.sin_().mul_(1e3).frac_().abs_();
    const at::Tensor ids = uniform.pow_(4).mul_(shape.vocabulary - 1).to(at::kLong);
    hidden.add_(weight.index_select(0, ids), (14 - 1.5 * std::log(k)) / squares);
    if (k == 1) targets = ids;
  }
  return {.hidden = hidden.to(at::kBFloat16).requires_grad_(),
          .weight = weight.requires_grad_(),
          .targets = targets.contiguous()};
}

void measure_filter(DeviceTable& table, const Shape& shape) {
  const Inputs inputs = peaked_inputs(table, shape);
  const Measurement measure(table, shape, inputs);
  for (const bool in_forward : {true, false}) {
    for (const auto& [preset, name] : kernels::enum_names(kernels::LinearCrossEntropyPreset())) {
      using Preset = kernels::LinearCrossEntropyPreset;
      if (preset == Preset::kCceKahanFull || preset == Preset::kCceKahanFullCFullE) continue;  // the same as exact
      const kernels::LinearCrossEntropyOptions options =
          kernels::with_preset({.gradients_in_forward = in_forward}, preset, at::kBFloat16);
      measure(cat("peaked, ", name, in_forward ? ", gradients in forward" : ", logits again"), 3, [&] {
        backward_of_sum(kernels::linear_cross_entropy(inputs.hidden, inputs.weight, inputs.targets, options).loss,
                        inputs);
      });
    }
  }
}

void measure_shape(DeviceTable& table, const Shape& shape) {
  const at::TensorOptions options = table.device().dtype(at::kBFloat16);
  Inputs inputs{
      .hidden = numbers(table, {shape.rows, shape.hidden}, 1.7).requires_grad_(),
      .weight = numbers(table, {shape.vocabulary, shape.hidden}, 0.05).requires_grad_(),
      .targets = at::arange(shape.rows, table.device().dtype(at::kLong)).mul_(7919).remainder(shape.vocabulary)};
  const Measurement measure(table, shape, inputs);
  const auto with = [&](const kernels::LinearCrossEntropyOptions& choice) {
    return [&, choice] {
      backward_of_sum(kernels::linear_cross_entropy(inputs.hidden, inputs.weight, inputs.targets, choice).loss, inputs);
    };
  };
  measure("ours, gradients in forward", 3, with({.gradients_in_forward = true}));
  measure("ours, logits again", 3, with({}));
  measure("ours, gradients in forward, half as many chunks", 3,
          with({.chunk_size = std::int64_t{38} << 24, .gradients_in_forward = true}));
  const at::Tensor place = at::zeros(inputs.weight.sizes(), table.device());
  const at::Tensor hidden = inputs.hidden.detach().requires_grad_(), placed = inputs.weight.detach().requires_grad_();
  const GradientHookHandle hook =
      on_gradient(placed, {.arrived = [](const at::Tensor&) {},
                           .place = [&] { return GradientPlace{.tensor = place, .has_values = true}; }});
  measure("ours, gradients in forward, of the weight added to fp32 (GiB less its gradient)", 3, [&] {
    kernels::linear_cross_entropy(hidden, placed, inputs.targets, {.gradients_in_forward = true}).loss.sum().backward();
    hidden.mutable_grad() = at::Tensor();
  });
  const kernels::detail::LinearCrossEntropyInput plain{.products = {{inputs.hidden.detach(), {inputs.weight.detach()}}},
                                                       .targets = inputs.targets,
                                                       .chunk_size = std::int64_t{1} << 26};
  const kernels::detail::LinearCrossEntropyWanted wanted{.products = {{.hidden = true, .weights = {true}}}};
  if (shape.sweeps_chunks) {
    for (const std::int64_t rows : {2048, 4096}) {
      for (const std::int64_t columns : {4224, 8448}) {
        measure(cat("in forward alone, chunks of ", rows, " x ", columns), 3, [&] {
          (void)kernels::detail::linear_cross_entropy_with_gradients_cuda(plain, wanted,
                                                                          {.num_rows = rows, .num_columns = columns});
        });
      }
    }
  }
  measure("composition of ATen", 3, [&] {
    const auto forward = kernels::detail::linear_cross_entropy_forward_aten(plain);
    (void)kernels::detail::linear_cross_entropy_backward_aten(plain, forward.lse, at::ones_like(forward.loss), {},
                                                              wanted);
  });
  measure("dense, at::cross_entropy_loss", 3, [&] {
    backward_of_sum(
        at::cross_entropy_loss(at::linear(inputs.hidden, inputs.weight), inputs.targets, {}, at::Reduction::None),
        inputs);
  });
  at::Tensor logits = at::empty({shape.rows, shape.vocabulary}, options);
  at::Tensor grad_hidden = at::empty_like(plain.hidden()), grad_weight = at::empty_like(plain.weights()[0]);
  measure("the three products alone", 3, [&] {
    at::mm_out(logits, plain.hidden(), plain.weights()[0].t());
    at::mm_out(grad_hidden, logits, plain.weights()[0]);
    at::mm_out(grad_weight, logits.t(), plain.hidden());
  });
}

// Measures the parts of the work on a chunk of rows.
void measure_parts(DeviceTable& table, std::int64_t rows, std::int64_t columns, std::int64_t hidden_size) {
  constexpr std::int64_t kVocabulary = 151936;
  const at::TensorOptions options = table.device().dtype(at::kBFloat16);
  const at::Tensor hidden = at::full({rows, hidden_size}, 0.01, options),
                   weight = at::full({kVocabulary, hidden_size}, 0.01, options);
  at::Tensor logits = at::zeros({rows, columns}, table.device()),
             grad_logits = at::full({rows, kVocabulary}, 0.001, options);
  at::Tensor grad_hidden = at::empty({rows, hidden_size}, table.device()), grad_weight = at::zeros_like(weight);
  const at::Tensor targets = at::arange(rows, table.device().dtype(at::kLong)), places = at::zeros_like(targets);
  const at::Tensor statistic = at::ones({6, rows}, table.device());
  const at::Tensor references = at::ones({rows, kVocabulary / columns + 1}, table.device());
  const auto statistic_of = [&](std::int64_t index) { return statistic[index].mutable_data_ptr<float>(); };
  const kernels::detail::StatisticsOfRanks statistics{.values = statistic_of(0), .num_ranks = 1};
  const auto row = [&](const std::string& part, double bytes, double flop,
                       const std::function<void(std::int64_t)>& op) {
    table.measure({.operation = part,
                   .shape = cat("T", rows, " H", hidden_size, " block ", columns),
                   .implementation = "part of a chunk",
                   .bytes = bytes,
                   .flop = flop},
                  op);
  };
  const double all = 2.0 * static_cast<double>(rows * hidden_size) * kVocabulary,
               block = 2.0 * static_cast<double>(rows * hidden_size * columns);
  const at::Tensor block_weight = weight.narrow(0, 0, columns);
  row("logits of a block", 0, block, [&](std::int64_t) { at::mm_out(logits, hidden, block_weight.t(), at::kFloat); });
  const auto exponentials = [&] {
    kernels::detail::launch_logit_exponentials({.block = {.dtype = Dtype::kBFloat16,
                                                          .logits = logits.mutable_data_ptr(),
                                                          .row_stride = columns,
                                                          .num_rows = rows,
                                                          .num_columns = columns,
                                                          .first_column = 0,
                                                          .bias = nullptr,
                                                          .softcap = 0,
                                                          .targets = targets.const_data_ptr<std::int64_t>()},
                                                .is_first = false,
                                                .reference = statistic_of(0),
                                                .sum = statistic_of(1),
                                                .target_logit = statistic_of(2),
                                                .exponentials = grad_logits.mutable_data_ptr(),
                                                .exponentials_stride = kVocabulary,
                                                .first_exponential = 0,
                                                .target_place = places.mutable_data_ptr<std::int64_t>(),
                                                .reference_of_block = references.mutable_data_ptr<float>(),
                                                .reference_of_block_stride = references.stride(0)},
                                               current_cuda_stream(logits.device()));
  };
  row("exponentials of a block", 6.0 * static_cast<double>(rows * columns), 0, [&](std::int64_t) { exponentials(); });
  row("logits and exponentials of a block", 0, block, [&](std::int64_t) {
    at::mm_out(logits, hidden, block_weight.t(), at::kFloat);
    exponentials();
  });
  at::Tensor scaled_hidden = at::empty_like(hidden);
  row("rest of rows", 4.0 * static_cast<double>(rows * hidden_size), 0, [&](std::int64_t) {
    kernels::detail::launch_rescale_exponentials({.exponentials = grad_logits.mutable_data_ptr(),
                                                  .row_stride = kVocabulary,
                                                  .num_rows = rows,
                                                  .num_columns = kVocabulary,
                                                  .block_columns = columns,
                                                  .targets = targets.const_data_ptr<std::int64_t>(),
                                                  .reference = statistic_of(0),
                                                  .statistics = statistics,
                                                  .reference_of_block = references.const_data_ptr<float>(),
                                                  .reference_of_block_stride = references.stride(0)},
                                                 current_cuda_stream(logits.device()));
    kernels::detail::launch_finish_rows({.num_rows = rows,
                                         .hidden_size = hidden_size,
                                         .targets = targets.const_data_ptr<std::int64_t>(),
                                         .reference = statistic_of(0),
                                         .statistics = statistics,
                                         .target_place = places.const_data_ptr<std::int64_t>(),
                                         .z_loss_weight = 0,
                                         .softcap = 0,
                                         .loss = statistic_of(3),
                                         .lse = statistic_of(4),
                                         .factor = statistic_of(5),
                                         .exponentials = grad_logits.mutable_data_ptr(),
                                         .exponentials_stride = kVocabulary,
                                         .hidden = hidden.const_data_ptr(),
                                         .scaled_hidden = scaled_hidden.mutable_data_ptr(),
                                         .filter_eps = 0,
                                         .threshold = nullptr},
                                        current_cuda_stream(logits.device()));
  });
  const at::Tensor threshold = at::full({rows}, 1, table.device());
  row("tiles that the filter clears", 4.0 * static_cast<double>(rows * kVocabulary), 0,
      [&](std::int64_t) { kernels::detail::clear_tiles_cuda_(grad_logits, threshold); });
  row("gradient of hidden", 0, all, [&](std::int64_t) { at::mm_out(grad_hidden, grad_logits, weight, at::kFloat); });
  row("gradient of weight", 0, all, [&](std::int64_t) { at::mm_out(grad_weight, grad_logits.t(), hidden); });
  row("gradient of weight, accumulated", 0, all, [&](std::int64_t) { grad_weight.addmm_(grad_logits.t(), hidden); });
  at::Tensor sum = at::zeros(weight.sizes(), table.device());
  row("gradient of weight in fp32", 0, all,
      [&](std::int64_t) { at::mm_out(sum, grad_logits.t(), hidden, at::kFloat); });
  row("gradient of weight in fp32, accumulated", 0, all,
      [&](std::int64_t) { at::addmm_out(sum, sum, grad_logits.t(), hidden, at::kFloat); });
  const at::Tensor one = at::ones({}, table.device());
  row("sum in fp32 to a gradient in bf16", 6.0 * static_cast<double>(sum.numel()), 0,
      [&](std::int64_t) { kernels::detail::put_scaled_cuda({.tensor = grad_weight, .has_values = false}, sum, one); });
}

void measure(DeviceTable& table) {
  for (const std::int64_t hidden_size : {2048, 4096})
    for (const std::int64_t columns : {2112, 4224, 8448}) measure_parts(table, 2048, columns, hidden_size);
  measure_shape(table, {.rows = 8192, .hidden = 4096, .vocabulary = 151936, .sweeps_chunks = true});
  measure_shape(table, {.rows = 8192, .hidden = 2048, .vocabulary = 151936, .sweeps_chunks = true});
  measure_shape(table, {.rows = 8192, .hidden = 4096, .vocabulary = 128256, .sweeps_chunks = false});
  for (const std::int64_t hidden_size : {2048, 4096})
    measure_filter(table, {.rows = 8192, .hidden = hidden_size, .vocabulary = 151936, .sweeps_chunks = false});
}
const bool kAdded = add_device_benchmark("linear_cross_entropy", measure);

}  // namespace
}  // namespace d9d::benchmarks
