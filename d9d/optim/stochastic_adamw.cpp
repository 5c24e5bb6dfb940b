#include "d9d/optim/stochastic_adamw.h"

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/core/dtype/scalar_type.h"
#include "d9d/optim/leaves.h"

namespace d9d {
namespace {

constexpr std::string_view kStochasticAdamW = "StochasticAdamW";

}  // namespace

StochasticAdamW::StochasticAdamW(const std::vector<NamedParameter>& parameters, const StochasticAdamWConfig& config,
                                 std::uint64_t seed)
    : config_(config), seed_(at::scalar_tensor(static_cast<std::int64_t>(seed), at::kLong)) {
  detail::check_not_negative("lr", config.lr, kStochasticAdamW);
  detail::check_not_negative("eps", config.eps, kStochasticAdamW);
  const ParameterGroups groups(config, /*place=*/"[optim::StochasticAdamW] ");
  D9D_CHECK(config.state_dtype == Dtype::kFloat32 || config.state_dtype == Dtype::kBFloat16, ConfigError,
            "[optim::StochasticAdamW] expected state_dtype \"bfloat16\" or \"float32\", got \"",
            enum_name(config.state_dtype), "\". Change optimizer.state_dtype.");
  const auto dtype = [&](const NamedParameter& parameter) {
    const at::ScalarType own = parameter.tensor.scalar_type();
    D9D_CHECK(own != at::kHalf, ConfigError, "[optim::StochasticAdamW] expected '", parameter.name,
              "' in bfloat16 or wider, got float16. Train it in bfloat16.");
    return own == at::kBFloat16 ? to_scalar_type(config.state_dtype) : own;
  };
  moments_ = detail::make_moments(parameters, groups, {.optimizer = kStochasticAdamW, .dtype = dtype});
  rate_factors_ = groups.rate_factors();
}

void StochasticAdamW::step(double learning_rate) { step(learning_rate, at::ones({}, at::kDouble)); }

void StochasticAdamW::step(double learning_rate, const at::Tensor& grad_scale) {
  detail::step(moments_,
               {.optimizer = kStochasticAdamW,
                .learning_rate = learning_rate,
                .eps = config_.eps,
                .rounding_seed = static_cast<std::uint64_t>(seed_.item<std::int64_t>())},
               grad_scale);
}

std::map<std::string, DTensor> StochasticAdamW::state_dict() const {
  std::map<std::string, DTensor> state = detail::state_of(moments_);
  state.emplace("rounding_seed", whole_dtensor(seed_));
  return state;
}

}  // namespace d9d
