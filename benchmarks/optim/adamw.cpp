// One optimiser step. On a GPU: all parameters of Qwen3 1.7B with untied embeddings, 2.03e9 elements in 311 tensors,
// beside the fused optimiser of ATen; the gradients' clip factor is part of the step. On a CPU: one parameter, our loop
// beside the composition of ATen operators.
#include <ATen/ATen.h>
#include <benchmark/benchmark.h>

#include "d9d/kernels/adamw/adamw_impl.h"

#include "benchmarks/device/device_table.h"
#include "benchmarks/optim/model_shapes.h"

namespace {

using d9d::benchmarks::add_device_benchmark;
using d9d::benchmarks::DeviceTable;
using d9d::kernels::AdamWTensors;

constexpr d9d::kernels::AdamWOptions kOptions{.learning_rate = 1e-3, .weight_decay = 0.1};

AdamWTensors tensors(std::int64_t size) {
  return {.parameter = at::ones({size}),
          .grad = at::full({size}, 0.1),
          .exp_avg = at::zeros({size}),
          .exp_avg_sq = at::zeros({size}),
          .step = 2};
}

void ours(benchmark::State& state) {
  const AdamWTensors all = tensors(state.range(0));
  const auto factors = d9d::kernels::detail::adamw_factors(kOptions, all.step);
  for (auto _ : state) d9d::kernels::detail::adamw_cpu(all, factors, 1.0);
  state.SetBytesProcessed(state.iterations() * state.range(0) * 28);
}

void composition(benchmark::State& state) {
  const AdamWTensors all = tensors(state.range(0));
  const auto factors = d9d::kernels::detail::adamw_factors(kOptions, all.step);
  const at::Tensor one = at::ones({}, at::kDouble);
  for (auto _ : state) d9d::kernels::detail::adamw_aten(all, factors, one);
  state.SetBytesProcessed(state.iterations() * state.range(0) * 28);
}

BENCHMARK(ours)->Arg(1 << 22);
BENCHMARK(composition)->Arg(1 << 22);

struct Dtypes {
  std::string name;
  at::ScalarType parameter;
  at::ScalarType grad;
  at::ScalarType moments;
  bool rounds = false;
};

struct Model {
  std::vector<AdamWTensors> tensors;
  double num_elements = 0;
  double bytes = 0;  // each of parameter and moments read and written, the gradient read
};

Model make_model(const Dtypes& dtypes, std::int64_t num_shards, const at::TensorOptions& device) {
  Model model;
  for (const std::int64_t size : d9d::benchmarks::qwen3_1_7b_sizes(num_shards)) {
    const auto filled = [&](at::ScalarType dtype, double spread) {
      return at::randn({size}, device.dtype(dtype)).mul_(spread);
    };
    AdamWTensors each{.parameter = filled(dtypes.parameter, 0.02),
                      .grad = filled(dtypes.grad, 1e-3),
                      .exp_avg = filled(dtypes.moments, 1e-3),
                      .exp_avg_sq = filled(dtypes.moments, 1e-3).square_(),
                      .step = 2};
    if (dtypes.rounds) each.rounding = d9d::kernels::StochasticRounding{.key = model.tensors.size()};
    model.num_elements += static_cast<double>(size);
    model.bytes +=
        static_cast<double>(size) * static_cast<double>(2 * each.parameter.element_size() + each.grad.element_size() +
                                                        4 * each.exp_avg.element_size());
    model.tensors.push_back(std::move(each));
  }
  return model;
}

void measure_ours(DeviceTable& table, const Dtypes& dtypes, std::int64_t num_shards) {
  const Model model = make_model(dtypes, num_shards, table.device());
  const at::Tensor scale = at::full({}, 0.5, table.device().dtype(at::kDouble));
  table.measure({.operation = dtypes.name,
                 .shape = d9d::benchmarks::describe(model.num_elements, model.tensors.size()),
                 .implementation = "ours",
                 .bytes = model.bytes},
                [&](std::int64_t) { d9d::kernels::adamw_(model.tensors, kOptions, scale); });
}

void measure_fused_aten(DeviceTable& table, const Dtypes& dtypes, std::int64_t num_shards) {
  const Model model = make_model(dtypes, num_shards, table.device());
  std::vector<at::Tensor> parameters, grads, exp_avgs, exp_avg_sqs, steps;
  for (const AdamWTensors& each : model.tensors) {
    parameters.push_back(each.parameter);
    grads.push_back(each.grad);
    exp_avgs.push_back(each.exp_avg);
    exp_avg_sqs.push_back(each.exp_avg_sq);
    steps.push_back(at::full({}, 2, table.device().dtype(at::kFloat)));
  }
  table.measure({.operation = dtypes.name,
                 .shape = d9d::benchmarks::describe(model.num_elements, model.tensors.size()),
                 .implementation = "at::_fused_adamw_, no clip factor",
                 .bytes = model.bytes},
                [&](std::int64_t) {
                  at::_fused_adamw_(parameters, grads, exp_avgs, exp_avg_sqs, {}, steps, kOptions.learning_rate,
                                    kOptions.beta1, kOptions.beta2, kOptions.weight_decay, kOptions.eps,
                                    /*amsgrad=*/false, /*maximize=*/false);
                });
}

void measure(DeviceTable& table) {
  constexpr at::ScalarType kWide = at::kFloat, kNarrow = at::kBFloat16;
  const Dtypes stochastic_14{"stochastic AdamW, bf16 gradients, bf16 moments", kNarrow, kNarrow, kNarrow, true};
  const Dtypes stochastic_16{"stochastic AdamW, fp32 gradients, bf16 moments", kNarrow, kWide, kNarrow, true};
  const Dtypes stochastic_24{"stochastic AdamW, fp32 gradients, fp32 moments", kNarrow, kWide, kWide, true};
  const Dtypes nearest_24{"AdamW, bf16 parameters, fp32 gradients and moments", kNarrow, kWide, kWide};
  const Dtypes wide{"AdamW, all fp32", kWide, kWide, kWide};
  const Dtypes narrow{"AdamW, all bf16", kNarrow, kNarrow, kNarrow};
  for (const std::int64_t num_shards : {1, 8, 64}) {
    for (const Dtypes& dtypes : {stochastic_14, stochastic_16, stochastic_24, nearest_24, wide})
      measure_ours(table, dtypes, num_shards);
    for (const Dtypes& dtypes : {wide, narrow}) measure_fused_aten(table, dtypes, num_shards);
  }
}

const bool kAdded = add_device_benchmark("adamw", measure);

}  // namespace
