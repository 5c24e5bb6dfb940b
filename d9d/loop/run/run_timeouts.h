// The timeouts of communication while a job runs: step_timeout in steps, init_timeout in the first one and in what
// takes longer than a step. Collective, but for restore().
//
// Example
//   RunTimeouts timeouts(context, config.timeout);
//   timeouts.begin();
//   while (...) {
//     run_step();
//     timeouts.longer_than_a_step([&] { save(); });
//     timeouts.end_step();
//   }
//   timeouts.end();
#pragma once

#include <chrono>
#include <cstdint>
#include <utility>

#include "d9d/core/dist_context/dist_context.h"
#include "d9d/loop/config/trainer_config.h"
#include "d9d/loop/run/step_profiler.h"

namespace d9d {

class RunTimeouts {
 public:
  // Both are borrowed.
  RunTimeouts(const DistContext& context, const TimeoutConfig& config) : context_(context), config_(config) {}

  void begin() const { set(config_.init_timeout); }
  void end_step() {
    if (!std::exchange(has_stepped_, true)) set(config_.step_timeout);
  }
  void end() const { set(config_.init_timeout); }  // an export takes longer than a step
  template <class Work>
  void longer_than_a_step(const Work& work) const {
    set(config_.init_timeout);
    work();
    if (has_stepped_) set(config_.step_timeout);
  }
  // A recording that ends with this step collects its events, which may take longer than a step.
  void end_step_of(StepProfiler& profiler, std::int64_t index) const {
    if (!profiler.ends_recording(index)) return profiler.end_step(index);
    longer_than_a_step([&] { profiler.end_step(index); });
  }
  // Local. Handlers may have run another job of this program, with timeouts of its own.
  void restore() const {
    const std::chrono::seconds own(has_stepped_ ? config_.step_timeout : config_.init_timeout);
    if (World& world = *context_.world(); world.timeout() != own) world.set_timeout(own);
  }
  [[nodiscard]] bool has_stepped() const { return has_stepped_; }

 private:
  void set(std::int64_t seconds) const { context_.set_timeout(std::chrono::seconds(seconds)); }

  const DistContext& context_;
  const TimeoutConfig& config_;
  bool has_stepped_ = false;
};

}  // namespace d9d
