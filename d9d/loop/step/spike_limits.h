// The loss and the gradient norm above which a step is a spike: the mean of earlier steps plus some standard
// deviations. They are known before a step begins, so the device decides without waiting for the host.
//
// Example
//   SpikeLimits limits(config.spikes);
//   const StepTotals step = gradients.apply(optimizer, rate, {.limits = limits.current()});
//   limits.add(step);
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <optional>

#include <nlohmann/json.hpp>

#include "d9d/loop/config/trainer_config.h"

namespace d9d {

struct StepTotals;

// Infinite: no limit.
struct StepLimits {
  double loss = std::numeric_limits<double>::infinity();
  double norm = std::numeric_limits<double>::infinity();
  [[nodiscard]] bool are_set() const { return loss < std::numeric_limits<double>::infinity(); }
};

class SpikeLimits {
 public:
  explicit SpikeLimits(const std::optional<SpikeConfig>& config) : config_(config) {}

  // The limits for the next step, the same on all ranks. There are none until half of the window is filled.
  [[nodiscard]] StepLimits current() const;
  // Adds a step that changed the model to the window. Others do not count.
  void add(const StepTotals& step);

  // Losses and norms of the window.
  [[nodiscard]] nlohmann::ordered_json state() const;
  void load_state(const nlohmann::ordered_json& state);

 private:
  std::optional<SpikeConfig> config_;
  std::deque<double> losses_, norms_;  // of the last steps, the oldest first
};

}  // namespace d9d
