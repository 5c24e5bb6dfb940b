// One step of Muon on a GPU: all parameters of Qwen3 1.7B with untied embeddings, in float32 with float32 gradients,
// whose clip factor is part of the step. Beside it AdamW's step, and the operators of torch.optim.Muon, matrix by
// matrix, with the fused AdamW of ATen for the other parameters.
#include "d9d/optim/muon.h"

#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "d9d/optim/adamw.h"

#include "benchmarks/device/device_table.h"
#include "benchmarks/optim/model_shapes.h"

namespace {

using d9d::benchmarks::DeviceTable;

constexpr double kRate = 1e-3, kDecay = 0.1;

struct Model {
  std::vector<d9d::NamedParameter> parameters;
  double num_elements = 0;
  double flop = 0;  // of products
};

Model make_model(const at::TensorOptions& device) {
  Model model;
  for (const std::vector<std::int64_t>& shape : d9d::benchmarks::qwen3_1_7b_shapes()) {
    using enum d9d::ParameterRole;
    const bool is_vector = shape.size() == 1, is_layer = model.parameters.size() >= 3;
    at::Tensor values = at::randn(shape, device).mul_(0.02).requires_grad_();
    values.mutable_grad() = at::randn(shape, device).mul_(1e-3);
    model.num_elements += static_cast<double>(values.numel());
    if (!is_vector && is_layer) {
      const auto least = static_cast<double>(std::min(shape[0], shape[1])),
                 most = static_cast<double>(shape[0] + shape[1]) - least;
      model.flop += 5 * (4 * least * least * most + 2 * least * least * least);
    }
    model.parameters.push_back({.name = std::to_string(model.parameters.size()),
                                .tensor = values,
                                .role = is_vector ? kNorm : (is_layer ? kLinear : kEmbedding)});
  }
  return model;
}

void measure_ours(DeviceTable& table, const std::string& name, auto optimizer, const Model& model, double flop) {
  const at::Tensor scale = at::full({}, 0.5, table.device().dtype(at::kDouble));
  table.measure({.operation = name,
                 .shape = d9d::benchmarks::describe(model.num_elements, model.parameters.size()),
                 .implementation = "ours",
                 .flop = flop},
                [&](std::int64_t) { optimizer.step(kRate, scale); });
}

at::Tensor orthogonalized_by_torch(const at::Tensor& direction) {
  const bool is_tall = direction.size(0) > direction.size(1);
  at::Tensor x = is_tall ? direction.to(at::kBFloat16).t() : direction.to(at::kBFloat16);
  x.div_(x.norm().clamp(1e-7));
  for (int step = 0; step < 5; ++step) {
    const at::Tensor gram = at::mm(x, x.t());
    x = at::addmm(x, at::addmm(gram, gram, gram, -4.7750, 2.0315), x, 3.4445);
  }
  return is_tall ? x.t() : x;
}

// The operators of torch.optim.Muon (torch 2.11), and of AdamW(fused=True).
void measure_torch(DeviceTable& table, const Model& model) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> momenta, others, grads, exp_avgs, exp_avg_sqs, steps;
  for (const d9d::NamedParameter& each : model.parameters) {
    const at::Tensor zeros = at::zeros_like(each.tensor);
    momenta.push_back(each.role == d9d::ParameterRole::kLinear ? zeros : at::Tensor());
    if (each.role == d9d::ParameterRole::kLinear) continue;
    others.push_back(each.tensor);
    grads.push_back(each.tensor.grad());
    exp_avgs.push_back(zeros);
    exp_avg_sqs.push_back(at::zeros_like(each.tensor));
    steps.push_back(at::full({}, 2, table.device().dtype(at::kFloat)));
  }
  const auto step = [&] {
    for (std::size_t i = 0; i < momenta.size(); ++i) {
      if (!momenta[i].defined()) continue;
      const at::Tensor& parameter = model.parameters[i].tensor;
      const at::Tensor& grad = parameter.grad();
      momenta[i].lerp_(grad, 0.05);
      const at::Tensor update = orthogonalized_by_torch(grad.lerp(momenta[i], 0.95));
      const auto ratio = static_cast<double>(parameter.size(0)) / static_cast<double>(parameter.size(1));
      parameter.mul_(1 - kRate * kDecay).add_(update, -kRate * std::sqrt(std::max(1.0, ratio)));
    }
    at::_fused_adamw_(others, grads, exp_avgs, exp_avg_sqs, {}, steps, kRate, 0.9, 0.999, kDecay, 1e-8,
                      /*amsgrad=*/false, /*maximize=*/false);
  };
  table.measure({.operation = "Muon, bf16 products",
                 .shape = d9d::benchmarks::describe(model.num_elements, model.parameters.size()),
                 .implementation = "torch.optim.Muon and fused AdamW, no clip factor",
                 .flop = model.flop},
                [&](std::int64_t) { step(); });
}

void measure(DeviceTable& table) {
  const Model model = make_model(table.device());
  measure_ours(table, "AdamW", d9d::AdamW(model.parameters, {.lr = kRate, .weight_decay = kDecay}), model, /*flop=*/0);
  for (const std::int64_t bucket_size_mb : {64, 256}) {
    measure_ours(table, "Muon, bf16 products, buckets of " + std::to_string(bucket_size_mb) + " MiB",
                 d9d::Muon(model.parameters, {.lr = kRate, .bucket_size_mb = bucket_size_mb}), model, model.flop);
  }
  measure_torch(table, model);
}

const bool kAdded = d9d::benchmarks::add_device_benchmark("muon", measure);

}  // namespace
