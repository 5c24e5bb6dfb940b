// How many steps of a job changed its model: a job in which none did has trained nothing.
//
// Example
//   job.updates.add(step, learning_rate, schedule.current_step(), context.is_main_process() ? &log : nullptr);
//   ...                                                    // all steps
//   job.updates.check(schedule.total_steps(), &log);
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "d9d/base/log.h"

namespace d9d {

struct StepGradients;

class UpdateCount {
 public:
  // A step has ended. log: is warned of one that changed nothing; null: another rank says it.
  void add(const StepGradients& step, double learning_rate, std::int64_t index, const Logger* log);
  // Throws StateError if no step of the job has changed the model. log: is warned where all rates since the start were
  // 0; null: another rank says it.
  void check(std::int64_t total_steps, const Logger* log) const;

  [[nodiscard]] std::int64_t num_updates() const { return num_updates_; }
  // Of the runs before this one.
  void load(std::int64_t num_updates) { num_updates_ = num_updates; }

 private:
  std::int64_t num_updates_ = 0;
  std::optional<bool> had_no_rate_;  // in any step since the start; none: no step yet
  std::string reason_;               // why the last of the steps that changed nothing did so
};

}  // namespace d9d
