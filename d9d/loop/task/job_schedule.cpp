#include "d9d/loop/task/job_schedule.h"

#include <nlohmann/json.hpp>

#include "d9d/base/check.h"

namespace d9d {

std::int64_t total_steps_of(std::optional<std::int64_t> configured, std::optional<std::int64_t> available) {
  D9D_CHECK(configured || available, ConfigError,
            "[loop::job_schedule] expected schedule.total_steps for data of unknown length, got null. Set it.");
  if (!configured) return *available;
  D9D_CHECK(!available || *configured <= *available, ConfigError,
            "[loop::job_schedule] expected schedule.total_steps of at most the ", available.value_or(0),
            " steps that the data has, got ", *configured, ". Lower it, or provide more data.");
  return *configured;
}

JobSchedule::JobSchedule(std::int64_t total_steps) : total_steps_(total_steps) {
  D9D_CHECK(total_steps > 0, ConfigError, "[loop::job_schedule] expected a job of at least one step, got ", total_steps,
            ". Check that the data holds one global batch.");
}

std::int64_t JobSchedule::current_step() const {
  D9D_CHECK(has_step_, ConfigError,
            "[loop::job_schedule] expected a captured loss to be the same function in all steps, got a task that asks "
            "for the step. Set trainer.cuda_graph to null.");
  return current_step_;
}

JobSchedule JobSchedule::without_step() const {
  JobSchedule schedule = *this;
  schedule.has_step_ = false;
  return schedule;
}

bool JobSchedule::should_do_action(const StepActionPeriod& period, const StepActionRules& rules) const {
  const std::int64_t ordinal = current_step() + (rules.after_advance ? 0 : 1);
  const bool is_last = ordinal == total_steps_;
  if (const auto* mode = std::get_if<StepActionMode>(&period.value)) {
    return *mode == StepActionMode::kLastStep && is_last;
  }
  const std::int64_t steps = std::get<EverySteps>(period.value).steps;
  D9D_CHECK(steps > 0, ConfigError, "[loop::job_schedule] expected a period of at least one step, got ", steps,
            ". Use \"disable\" for never.");
  return ordinal % steps == 0 || (rules.always_at_last_step && is_last);
}

nlohmann::ordered_json JobSchedule::state() const { return {{"current_step", current_step_}}; }

void JobSchedule::load_state(const nlohmann::ordered_json& state) {
  const bool has_step =
      state.is_object() && state.contains("current_step") && state["current_step"].is_number_integer();
  D9D_CHECK(has_step && state["current_step"] >= 0, StateError,
            "[loop::job_schedule] expected {\"current_step\": n} with n >= 0, got ", state.dump(),
            ". Load the checkpoint that a job wrote.");
  const auto step = state["current_step"].get<std::int64_t>();
  D9D_CHECK(step <= total_steps_, ConfigError, "[loop::job_schedule] expected at least ", step,
            " steps in all, which the checkpoint has done, got ", total_steps_,
            ". Raise trainer.schedule.total_steps, or move the checkpoint away.");
  current_step_ = step;
}

}  // namespace d9d
