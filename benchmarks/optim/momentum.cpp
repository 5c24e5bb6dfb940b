// One step of SGD with momentum and of Lion. On a GPU: all parameters of Qwen3 1.7B with untied embeddings, beside the
// fused SGD of ATen; the gradients' clip factor is part of the step. On a CPU: one parameter, our loop beside the
// composition of ATen operators.
#include <ATen/ATen.h>
#include <benchmark/benchmark.h>

#include "d9d/kernels/momentum/momentum_impl.h"

#include "benchmarks/device/device_table.h"
#include "benchmarks/optim/model_shapes.h"

namespace {

using d9d::benchmarks::add_device_benchmark;
using d9d::benchmarks::DeviceTable;
using d9d::kernels::MomentumFactors;
using d9d::kernels::MomentumTensors;

constexpr MomentumFactors kSgd{.buffer_decay = 0.9, .update_buffer = 0.9, .step_size = 1e-3};
constexpr MomentumFactors kLion{.buffer_decay = 0.99,
                                .buffer_grad = 0.01,
                                .update_buffer = 0.9,
                                .update_grad = 0.1,
                                .parameter_decay = 0.999,
                                .step_size = 1e-4,
                                .takes_sign = true};

MomentumTensors one_tensor(std::int64_t size) {
  return {.parameter = at::ones({size}), .grad = at::full({size}, 0.1), .buffer = at::zeros({size})};
}

void momentum_ours(benchmark::State& state) {
  const MomentumTensors tensors = one_tensor(state.range(0));
  for (auto _ : state) d9d::kernels::detail::momentum_cpu(tensors, kLion, 1.0);
  state.SetBytesProcessed(state.iterations() * state.range(0) * 20);
}

void momentum_composition(benchmark::State& state) {
  const MomentumTensors tensors = one_tensor(state.range(0));
  const at::Tensor one = at::ones({}, at::kDouble);
  for (auto _ : state) d9d::kernels::detail::momentum_aten(tensors, kLion, one);
  state.SetBytesProcessed(state.iterations() * state.range(0) * 20);
}

BENCHMARK(momentum_ours)->Arg(1 << 22);
BENCHMARK(momentum_composition)->Arg(1 << 22);

struct Model {
  std::vector<MomentumTensors> tensors;
  double num_elements = 0;
  double bytes = 0;  // parameter and buffer read and written, the gradient read
};

Model make_model(at::ScalarType dtype, const at::TensorOptions& device) {
  Model model;
  for (const std::int64_t size : d9d::benchmarks::qwen3_1_7b_sizes(/*num_shards=*/1)) {
    const auto filled = [&](at::ScalarType type) { return at::randn({size}, device.dtype(type)).mul_(1e-2); };
    model.tensors.push_back({.parameter = filled(dtype), .grad = filled(dtype), .buffer = filled(at::kFloat)});
    model.num_elements += static_cast<double>(size);
    model.bytes += static_cast<double>(size) * (3.0 * static_cast<double>(at::elementSize(dtype)) + 8.0);
  }
  return model;
}

void measure_ours(DeviceTable& table, const std::string& name, at::ScalarType dtype, const MomentumFactors& factors) {
  const Model model = make_model(dtype, table.device());
  const at::Tensor scale = at::full({}, 0.5, table.device().dtype(at::kDouble));
  table.measure({.operation = name,
                 .shape = d9d::benchmarks::describe(model.num_elements, model.tensors.size()),
                 .implementation = "ours",
                 .bytes = model.bytes},
                [&](std::int64_t) { d9d::kernels::momentum_(model.tensors, factors, scale); });
}

void measure_fused_aten(DeviceTable& table) {
  const Model model = make_model(at::kFloat, table.device());
  std::vector<at::Tensor> parameters, grads, buffers;
  for (const MomentumTensors& each : model.tensors) {
    parameters.push_back(each.parameter);
    grads.push_back(each.grad);
    buffers.push_back(each.buffer);
  }
  table.measure({.operation = "SGD with momentum, all fp32",
                 .shape = d9d::benchmarks::describe(model.num_elements, model.tensors.size()),
                 .implementation = "at::_fused_sgd_, no clip factor",
                 .bytes = model.bytes},
                [&](std::int64_t) {
                  at::_fused_sgd_(parameters, grads, buffers, /*weight_decay=*/0.0, /*momentum=*/0.9, /*lr=*/1e-3,
                                  /*dampening=*/0.0, /*nesterov=*/false, /*maximize=*/false, /*is_first_step=*/false);
                });
}

void measure(DeviceTable& table) {
  measure_ours(table, "SGD with momentum, all fp32", at::kFloat, kSgd);
  measure_fused_aten(table);
  measure_ours(table, "SGD with momentum, bf16 parameters and gradients", at::kBFloat16, kSgd);
  measure_ours(table, "Lion, all fp32", at::kFloat, kLion);
  measure_ours(table, "Lion, bf16 parameters and gradients", at::kBFloat16, kLion);
}

const bool kAdded = add_device_benchmark("momentum", measure);

}  // namespace
