#include "d9d/blocks/linear/linear.h"

#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/kernels/linear/linear.h"

namespace d9d {
namespace {

const LinearConfig& checked(const LinearConfig& config) {
  D9D_CHECK(config.in_features > 0 && config.out_features > 0, ConfigError,
            "[blocks::linear] expected positive features, got in = ", config.in_features,
            ", out = ", config.out_features, ".");
  return config;
}

Initializer fan_in(const LinearConfig& config) {
  return init::uniform(1.0 / std::sqrt(static_cast<double>(config.in_features)));
}

}  // namespace

Linear::Linear(const LinearConfig& configuration)
    : config(checked(configuration)),
      weight(register_parameter(
          "weight", {.shape = {config.out_features, config.in_features}, .init = fan_in(config), .role = config.role})),
      bias(config.has_bias
               ? register_parameter(
                     "bias", {.shape = {config.out_features}, .init = fan_in(config), .role = ParameterRole::kVector})
               : nullptr) {}

double Linear::forward_flops(std::int64_t /*num_positions*/) const {
  return 2.0 * static_cast<double>(config.in_features) * static_cast<double>(config.out_features);
}

at::Tensor Linear::forward(const at::Tensor& x) const {
  return bias ? kernels::linears(x, {weight->local()}, {bias->local()}).front() : kernels::linear(x, weight->local());
}

std::vector<at::Tensor> linears_of(const at::Tensor& x, const std::vector<ModulePtr<Linear>>& linears) {
  std::vector<at::Tensor> outputs;
  const bool has_biases = linears.front()->config.has_bias;
  if (std::ranges::all_of(linears, [&](const ModulePtr<Linear>& linear) {
        return linear->is_plain() && linear->config.has_bias == has_biases;
      })) {
    std::vector<at::Tensor> weights;
    std::vector<at::Tensor> biases;
    for (const ModulePtr<Linear>& linear : linears) {
      weights.push_back(linear->weight->local());
      if (linear->bias) biases.push_back(linear->bias->local());
    }
    return kernels::linears(x, weights, biases);
  }
  for (const ModulePtr<Linear>& linear : linears) outputs.push_back(linear(x));
  return outputs;
}

void join_weights(const std::vector<ModulePtr<Linear>>& linears) {
  const at::Tensor& first = linears.front()->weight->local();
  std::int64_t numel = 0;
  for (const ModulePtr<Linear>& linear : linears) {
    const Parameter& weight = *linear->weight;
    if (has_flat_shard(weight.placements()) || weight.local().scalar_type() != first.scalar_type()) return;
    numel += weight.local().numel();
  }
  const at::Tensor joined = at::empty({numel}, first.options());
  std::int64_t offset = 0;
  for (const ModulePtr<Linear>& linear : linears) {
    const at::Tensor& weight = linear->weight->local();
    const at::Tensor part = joined.narrow(0, offset, weight.numel()).view(weight.sizes());
    offset += weight.numel();
    linear->weight->replace_local(part.variable_data());
  }
}

}  // namespace d9d
