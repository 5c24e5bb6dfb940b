#include "d9d/optim/adam.h"

#include <ATen/ATen.h>

#include "d9d/optim/leaves.h"

namespace d9d {
namespace {

constexpr std::string_view kAdam = "Adam";

}  // namespace

Adam::Adam(const std::vector<NamedParameter>& parameters, const AdamConfig& config) : config_(config) {
  detail::check_not_negative("lr", config.lr, kAdam);
  detail::check_not_negative("eps", config.eps, kAdam);
  const ParameterGroups groups(config, /*place=*/"[optim::Adam] ");
  moments_ = detail::make_moments(parameters, groups,
                                  {.optimizer = kAdam, .dtype = detail::state_dtype, .amsgrad = config.amsgrad});
  rate_factors_ = groups.rate_factors();
}

void Adam::step(double learning_rate) { step(learning_rate, at::ones({}, at::kDouble)); }

void Adam::step(double learning_rate, const at::Tensor& grad_scale) {
  detail::step(moments_,
               {.optimizer = kAdam,
                .learning_rate = learning_rate,
                .eps = config_.eps,
                .maximize = config_.maximize,
                .decouples_decay = config_.decoupled_weight_decay},
               grad_scale);
}

}  // namespace d9d
