// Reports the steps of a training run to trackers, on the progress bar, and in the log.
//
// Example
//   StepLog log(job);
//   log.announce(gradients);
//   while (...) {
//     auto collected = log.collect();            // where the step logs metrics
//     ...                                        // the optimiser's step, during which the values are copied
//     log.write({.gradients = step, .collected = std::move(collected), .learning_rate = rate, .seconds = seconds});
//   }
//   log.finish_bar();
//   log.run().close(RunOutcome::kCompleted);
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "d9d/base/log.h"
#include "d9d/base/progress/progress_bar.h"
#include "d9d/core/device/host_copy.h"
#include "d9d/loop/step/gradient_manager.h"
#include "d9d/loop/step/rank_votes.h"
#include "d9d/loop/step/stage_statistics.h"
#include "d9d/loop/step/training_job.h"
#include "d9d/tracker/tracker.h"

namespace d9d {

// Metrics and statistics of a step, whose copy from the device to the host may still be running.
struct CollectedValues {
  struct Series {
    std::string name;
    std::int64_t size = 1;  // more than 1: the counts of a histogram
  };
  std::vector<Series> series;
  HostCopy values;  // [sum of sizes] fp64
};

// The results of a step that are logged, shown and passed to handlers.
struct StepReport {
  StepTotals gradients;
  JobVotes votes;
  std::optional<CollectedValues> collected;
  double learning_rate = 0.0;
  double seconds = 0.0;
};

class StepLog {
 public:
  // `job` is borrowed. Opens the run of the trackers; other ranks than the main process write to none.
  explicit StepLog(const TrainingJob& job);

  // Collective. Logs library versions and the size of the job. Called once, before the first step.
  void announce(const GradientManager& gradients) const;
  // Collective. Begins to copy metrics and statistics of the model to the host, and resets the metrics. Returns none if
  // the job has no such values. Called before the optimiser's step, so that write() need not wait for the optimiser.
  [[nodiscard]] std::optional<CollectedValues> collect();
  // Writes the values of the current step to the trackers. Called before JobSchedule::advance().
  void write(const StepReport& report);
  // Writes a value of an evaluation after the steps that are done, to the last of them; before the first step, to
  // step -1.
  void write_evaluation(const std::string& set, const std::string& name, double value);
  // Updates the progress bar. Called after JobSchedule::advance(), since the bar shows the number of completed steps.
  void show(const StepReport& report);
  void finish_bar() { bar_.finish(); }

  [[nodiscard]] TrackerRun& run() const { return *run_; }
  [[nodiscard]] const Logger& log() const { return log_; }
  [[nodiscard]] const Logger* main_log() const { return job_.context.is_main_process() ? &log_ : nullptr; }

 private:
  void write(const std::string& name, const TrackerValue& value);

  const TrainingJob& job_;
  ProgressBar bar_;
  Logger log_;
  std::unique_ptr<TrackerRun> run_;
  StageStatistics statistics_;
  const SideStream copies_;
};

}  // namespace d9d
