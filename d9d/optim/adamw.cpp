#include "d9d/optim/adamw.h"

#include <ATen/ATen.h>

#include "d9d/optim/leaves.h"

namespace d9d {
namespace {

constexpr std::string_view kAdamW = "AdamW";

}  // namespace

AdamW::AdamW(const std::vector<NamedParameter>& parameters, const AdamWConfig& config) : config_(config) {
  detail::check_not_negative("lr", config.lr, kAdamW);
  detail::check_not_negative("eps", config.eps, kAdamW);
  const ParameterGroups groups(config, /*place=*/"[optim::AdamW] ");
  moments_ = detail::make_moments(parameters, groups,
                                  {.optimizer = kAdamW, .dtype = detail::state_dtype, .amsgrad = config.amsgrad});
  rate_factors_ = groups.rate_factors();
}

void AdamW::step(double learning_rate) { step(learning_rate, at::ones({}, at::kDouble)); }

void AdamW::step(double learning_rate, const at::Tensor& grad_scale) {
  detail::step(moments_,
               {.optimizer = kAdamW, .learning_rate = learning_rate, .eps = config_.eps, .maximize = config_.maximize},
               grad_scale);
}

}  // namespace d9d
