#include "d9d/optim/stochastic_adamw.h"

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/base/philox.h"
#include "d9d/core/dtype/scalar_type.h"

namespace d9d {
namespace {

constexpr std::string_view kStochasticAdamW = "StochasticAdamW";

bool is_rounded(const NamedParameter& parameter) { return parameter.tensor.scalar_type() == at::kBFloat16; }

}  // namespace

StochasticAdamW::StochasticAdamW(const std::vector<NamedParameter>& parameters, const StochasticAdamWConfig& config,
                                 std::uint64_t seed)
    : config_(config), seed_(at::scalar_tensor(static_cast<std::int64_t>(seed), at::kLong)) {
  detail::check_adam_numbers(config.lr, config.betas, config.eps, config.weight_decay, kStochasticAdamW);
  D9D_CHECK(config.state_dtype == Dtype::kFloat32 || config.state_dtype == Dtype::kBFloat16, ConfigError,
            "[optim::StochasticAdamW] expected state_dtype \"bfloat16\" or \"float32\", got \"",
            enum_name(config.state_dtype), "\". Change optimizer.state_dtype.");
  const auto dtype = [&](const NamedParameter& parameter) {
    const at::ScalarType own = parameter.tensor.scalar_type();
    D9D_CHECK(own != at::kHalf, ConfigError, "[optim::StochasticAdamW] expected '", parameter.name,
              "' in bfloat16 or wider, got float16. Train it in bfloat16.");
    return is_rounded(parameter) ? to_scalar_type(config.state_dtype) : own;
  };
  moments_ = detail::make_moments(parameters, {.optimizer = kStochasticAdamW, .dtype = dtype});
}

void StochasticAdamW::step(double learning_rate) { step(learning_rate, at::ones({}, at::kDouble)); }

void StochasticAdamW::step(double learning_rate, const at::Tensor& grad_scale) {
  detail::check_learning_rate(learning_rate, kStochasticAdamW);
  const auto seed = static_cast<std::uint64_t>(seed_.item<std::int64_t>());
  std::vector<kernels::AdamWTensors> tensors;
  for (const detail::Moments& moments : moments_) {
    const NamedParameter& parameter = moments.parameter;
    if (!parameter.tensor.grad().defined()) continue;
    tensors.push_back(detail::begin_step(moments, kStochasticAdamW));
    if (is_rounded(parameter)) {
      tensors.back().rounding = kernels::StochasticRounding{
          .key = philox_key(seed, "stochastic_rounding", parameter.name), .rows = parameter.rows};
    }
  }
  kernels::adamw_(tensors,
                  {.learning_rate = learning_rate,
                   .beta1 = config_.betas.first,
                   .beta2 = config_.betas.second,
                   .eps = config_.eps,
                   .weight_decay = config_.weight_decay},
                  grad_scale);
}

std::map<std::string, DTensor> StochasticAdamW::state_dict() const {
  std::map<std::string, DTensor> state = detail::state_of(moments_);
  state.emplace("rounding_seed", whole_dtensor(seed_));
  return state;
}

}  // namespace d9d
