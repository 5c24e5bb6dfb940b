#include "d9d/lr_scheduler/schedule_phases.h"

#include <algorithm>
#include <cmath>

#include "d9d/base/check.h"

namespace d9d {
namespace {

constexpr double kDecayShare = 0.1;  // of "wsd", unless a key says it

struct PhasesOf {
  std::optional<std::int64_t> total_steps;

  SchedulePhases operator()(const PiecewiseConfig& config) const {
    SchedulePhases result{.piecewise = config, .names = {}};
    for (std::size_t i = 0; i < config.phases.size(); ++i) result.names.push_back(cat("phases.", i));
    return result;
  }
  SchedulePhases operator()(const PiecewiseSchedulerConfig& config) const { return (*this)(config.scheduler); }

  SchedulePhases operator()(const ConstantScheduleConfig& config) const {
    SchedulePhases phases = warmed_up(config.warmup);
    if (phases.names.empty()) add(phases, "the whole", RestPhaseConfig{});
    return phases;
  }
  SchedulePhases operator()(const LinearScheduleConfig& config) const {
    return decaying(config.warmup, config.min_ratio, LinearCurveConfig{});
  }
  SchedulePhases operator()(const CosineScheduleConfig& config) const {
    return decaying(config.warmup, config.min_ratio, CosineCurveConfig{});
  }
  SchedulePhases operator()(const WsdScheduleConfig& config) const {
    const std::int64_t warmup = steps_of(config.warmup),
                       decay = config.decay_steps.value_or(steps_of(config.decay_share.value_or(kDecayShare)));
    const std::int64_t stable = total() - warmup - decay;
    D9D_CHECK(stable >= 0, ConfigError, "[lr_scheduler] expected a warm-up and a decay of \"wsd\" of at most ", total(),
              " steps together, got ", warmup, " and ", decay, ". Shorten them, or train longer.");
    SchedulePhases phases = warmed_up(config.warmup);
    if (stable > 0) add(phases, "the stable phase", StepsPhaseConfig{.steps = stable});
    add(phases, "the decay", RestPhaseConfig{.target_multiplier = config.min_ratio, .curve = config.decay_curve});
    return phases;
  }
  SchedulePhases operator()(const InverseSqrtScheduleConfig& config) const {
    const std::int64_t warmup = steps_of(config.warmup);
    const auto timescale = static_cast<double>(std::max<std::int64_t>(1, config.timescale.value_or(warmup)));
    const auto steps = static_cast<double>(std::max<std::int64_t>(0, total() - warmup));
    return decaying(config.warmup, 1 / std::sqrt(1 + steps / timescale), InverseSqrtCurveConfig{});
  }

 private:
  [[nodiscard]] std::int64_t total() const {
    D9D_CHECK(total_steps, ConfigError,
              "[lr_scheduler] expected the number of steps of the run, which a named schedule needs, got none. Set "
              "trainer.schedule.total_steps.");
    return *total_steps;
  }
  // Cut to a whole step, as the shares of phases are.
  [[nodiscard]] std::int64_t steps_of(double share) const {
    return static_cast<std::int64_t>(static_cast<double>(total()) * share);
  }
  [[nodiscard]] std::int64_t steps_of(const WarmupConfig& warmup) const {
    return warmup.share ? steps_of(*warmup.share) : warmup.steps;
  }

  static void add(SchedulePhases& phases, const std::string& name, const PhaseConfig& phase) {
    phases.piecewise.phases.push_back(phase);
    phases.names.push_back(name);
  }
  [[nodiscard]] SchedulePhases warmed_up(const WarmupConfig& warmup) const {
    SchedulePhases phases;
    const std::int64_t steps = steps_of(warmup);
    if (steps == 0) return phases;
    phases.piecewise.initial_multiplier = 0;
    add(phases, "the warm-up", StepsPhaseConfig{.steps = steps});
    return phases;
  }
  [[nodiscard]] SchedulePhases decaying(const WarmupConfig& warmup, double end, const CurveConfig& curve) const {
    SchedulePhases phases = warmed_up(warmup);
    add(phases, "the decay", RestPhaseConfig{.target_multiplier = end, .curve = curve});
    return phases;
  }
};

}  // namespace

SchedulePhases schedule_phases(const LRSchedulerConfig& config, std::optional<std::int64_t> total_steps) {
  return std::visit(PhasesOf{total_steps}, config);
}

}  // namespace d9d
