#include "d9d/modules/blocks/linear/linear.h"

#include <cmath>

#include <ATen/ATen.h>

#include "d9d/base/check.h"

namespace d9d {
namespace {

const LinearConfig& checked(const LinearConfig& config) {
  D9D_CHECK(config.in_features > 0 && config.out_features > 0, ConfigError,
            "[modules::linear] expected positive features, got in = ", config.in_features,
            ", out = ", config.out_features, ".");
  return config;
}

Initializer fan_in(const LinearConfig& config) {
  return init::uniform(1.0 / std::sqrt(static_cast<double>(config.in_features)));
}

}  // namespace

Linear::Linear(const LinearConfig& configuration)
    : config(checked(configuration)),
      weight(
          register_parameter("weight", {.shape = {config.out_features, config.in_features}, .init = fan_in(config)})),
      bias(config.has_bias ? register_parameter("bias", {.shape = {config.out_features}, .init = fan_in(config)})
                           : nullptr) {}

at::Tensor Linear::forward(const at::Tensor& x) const {
  return bias ? at::linear(x, weight->local(), bias->local()) : at::linear(x, weight->local());
}

}  // namespace d9d
