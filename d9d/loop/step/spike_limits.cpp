#include "d9d/loop/step/spike_limits.h"

#include <cmath>
#include <numeric>

#include "d9d/loop/step/gradient_manager.h"

namespace d9d {
namespace {

double limit_of(const std::deque<double>& values, double num_deviations) {
  const auto count = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return mean + num_deviations * std::sqrt(squares / count);
}

}  // namespace

StepLimits SpikeLimits::current() const {
  if (!config_ || 2 * std::ssize(losses_) < config_->window_steps) return {};
  return {.loss = limit_of(losses_, config_->num_deviations), .norm = limit_of(norms_, config_->num_deviations)};
}

void SpikeLimits::add(const StepTotals& step) {
  if (!config_ || !step.is_usable) return;
  losses_.push_back(step.loss);
  norms_.push_back(step.norm);
  while (std::ssize(losses_) > config_->window_steps) {
    losses_.pop_front();
    norms_.pop_front();
  }
}

nlohmann::ordered_json SpikeLimits::state() const { return {{"losses", losses_}, {"norms", norms_}}; }

void SpikeLimits::load_state(const nlohmann::ordered_json& state) {
  losses_ = state.at("losses").get<std::deque<double>>();
  norms_ = state.at("norms").get<std::deque<double>>();
}

}  // namespace d9d
