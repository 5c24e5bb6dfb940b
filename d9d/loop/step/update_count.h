// Counts the steps that changed the model of a job. A job without such a step has trained nothing, which is an error.
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

struct StepTotals;

class UpdateCount {
 public:
  // Called after each step. log: gets a warning if the step changed nothing; null on ranks that do not log.
  void add(const StepTotals& step, double learning_rate, std::int64_t index, const Logger* log);
  // Throws StateError if no step of the job has changed the model. log: gets a warning if the learning rate was 0 in
  // every step since the start; null on ranks that do not log.
  void check(std::int64_t total_steps, const Logger* log) const;

  // Throws StateError if so many steps in a row have changed nothing; nullopt: never.
  void check_skipped(std::optional<std::int64_t> max_in_a_row) const;

  [[nodiscard]] std::int64_t num_updates() const { return num_updates_; }
  [[nodiscard]] std::int64_t num_skipped_in_a_row() const { return num_skipped_in_a_row_; }
  // Sets the counts to those of the runs before this one.
  void load(std::int64_t num_updates, std::int64_t num_skipped_in_a_row) {
    num_updates_ = num_updates;
    num_skipped_in_a_row_ = num_skipped_in_a_row;
  }

 private:
  std::int64_t num_updates_ = 0;
  std::int64_t num_skipped_in_a_row_ = 0;
  std::optional<bool> had_no_rate_;  // whether the learning rate was 0 in every step since the start; none: no step yet
  std::string reason_;               // why the latest step that changed nothing did so
};

}  // namespace d9d
