#include "d9d/optim/ema.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <ATen/core/grad_mode.h>

#include "d9d/base/check.h"
#include "d9d/optim/leaves.h"

namespace d9d {
namespace {

constexpr std::int64_t kElementsOfBatch = std::int64_t{1} << 26;  // that are widened together

// Without other memory.
void exchange(const at::Tensor& one, const at::Tensor& other) {
  const at::ScalarType bits = one.element_size() == 8 ? at::kLong : at::kInt;
  const at::Tensor a = one.detach().view(bits), b = other.view(bits);
  a.bitwise_xor_(b);
  b.bitwise_xor_(a);
  a.bitwise_xor_(b);
}

}  // namespace

Ema::Ema(const std::vector<NamedParameter>& parameters, const EmaConfig& config)
    : config_(config), num_updates_(at::zeros({}, at::kLong)) {
  D9D_CHECK(config.decay >= 0 && config.decay < 1 && config.start_step >= 0 && config.period_steps >= 1, ConfigError,
            "[optim::ema] expected decay in [0, 1), start_step >= 0 and period_steps >= 1, got ", config.decay, ", ",
            config.start_step, " and ", config.period_steps, ". Use such numbers.");
  detail::check_leaves(parameters, "Ema");
  const at::NoGradGuard no_grad;
  for (const NamedParameter& parameter : parameters) {
    const at::Tensor& tensor = parameter.tensor;
    averages_.push_back({.parameter = parameter,
                         .values = tensor.detach().to(at::toOpMathType(tensor.scalar_type()), /*non_blocking=*/false,
                                                      /*copy=*/true)});
  }
}

void Ema::check_not_swapped(const char* what) const {
  D9D_CHECK(
      !is_swapped_, StateError, "[optim::ema] expected ", what,
      " while parameters have their own values, got a call while they have the averages. Call it after the end of "
      "AveragedWeights.");
}

void Ema::update() {
  check_not_swapped("update()");
  const std::int64_t num_averaged_steps = ++*num_updates_.mutable_data_ptr<std::int64_t>() - config_.start_step;
  if (num_averaged_steps > 0 && num_averaged_steps % config_.period_steps != 0) return;
  const auto n = static_cast<double>(num_averaged_steps / config_.period_steps);
  const double decay = config_.warmup ? std::min(config_.decay, (1 + n) / (10 + n)) : config_.decay;
  const at::NoGradGuard no_grad;
  for (auto next = averages_.begin(); next != averages_.end();) {
    std::vector<at::Tensor> averages, values;
    for (std::int64_t num_widened = 0; next != averages_.end() && num_widened < kElementsOfBatch; ++next) {
      const at::Tensor own = next->parameter.tensor.detach();
      if (own.numel() == 0) continue;
      averages.push_back(next->values);
      values.push_back(own.to(next->values.scalar_type()));
      if (!values.back().is_alias_of(own)) num_widened += own.numel();
    }
    if (averages.empty()) continue;
    if (num_averaged_steps > 0) {
      at::_foreach_lerp_(averages, values, 1 - decay);
    } else {
      at::_foreach_copy_(averages, values);
    }
  }
}

std::map<std::string, DTensor> Ema::state_dict() const {
  std::map<std::string, DTensor> state = {{"num_updates", whole_dtensor(num_updates_)}};
  for (const auto& [parameter, values] : averages_) {
    state.emplace(parameter.name + ".average", parameter.laid_out(values));
  }
  return state;
}

std::map<std::string, DTensor> Ema::rounded() const {
  check_not_swapped("rounded()");
  const at::NoGradGuard no_grad;
  std::map<std::string, DTensor> result;
  for (const auto& [parameter, values] : averages_) {
    result.emplace(parameter.name, parameter.laid_out(values.to(parameter.tensor.scalar_type())));
  }
  return result;
}

AveragedWeights::AveragedWeights(Ema& ema) : ema_(ema) {
  ema.check_not_swapped("AveragedWeights");
  const at::NoGradGuard no_grad;
  for (const auto& [parameter, values] : ema.averages_) {  // what may find no memory comes first
    const at::Tensor own = parameter.tensor.detach();
    if (own.scalar_type() != values.scalar_type()) trained_.emplace(parameter.name, own.clone());
  }
  for (const auto& [parameter, values] : ema.averages_) {
    if (trained_.contains(parameter.name)) {
      parameter.tensor.detach().copy_(values);
    } else {
      exchange(parameter.tensor, values);
    }
  }
  ema.is_swapped_ = true;
}

AveragedWeights::~AveragedWeights() {
  const at::NoGradGuard no_grad;
  for (const auto& [parameter, values] : ema_.averages_) {
    const auto found = trained_.find(parameter.name);
    if (found != trained_.end()) {
      parameter.tensor.detach().copy_(found->second);
    } else {
      exchange(parameter.tensor, values);
    }
  }
  ema_.is_swapped_ = false;
}

}  // namespace d9d
