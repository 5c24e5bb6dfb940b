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
//   log.close(RunOutcome::kCompleted);
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "d9d/base/log.h"
#include "d9d/base/progress/progress_bar.h"
#include "d9d/core/device/host_copy.h"
#include "d9d/loop/run/step_costs.h"
#include "d9d/loop/step/gradient_manager.h"
#include "d9d/loop/step/rank_votes.h"
#include "d9d/loop/step/stage_statistics.h"
#include "d9d/loop/step/training_job.h"
#include "d9d/tracker/tracker.h"

namespace d9d {

// Metrics, statistics and peak memory of a step, whose copy from the device to the host may still be running.
struct CollectedValues {
  struct Series {
    std::string name;
    std::int64_t size = 1;  // more than 1: the counts of a histogram
  };
  std::vector<Series> series;
  HostCopy values;        // [sum of sizes] fp64
  StreamEvent done = {};  // the device has read what the values are computed from
};

// The results of a step that are logged, shown and passed to handlers.
struct StepReport {
  StepTotals gradients;
  JobVotes votes;
  std::optional<CollectedValues> collected;
  double learning_rate = 0.0;
  double seconds = 0.0;
};

// Values of steps that are not written yet, in the order of the steps: those of a step wait for their copies from the
// device.
class PendingSteps {
 public:
  struct Step {
    std::int64_t index = 0;
    std::vector<std::pair<std::string, double>> known = {};
    std::optional<CollectedValues> collected = {};
  };
  using Write = std::function<void(std::int64_t step, const std::string& name, const TrackerValue& value)>;

  explicit PendingSteps(Write write) : write_(std::move(write)) {}
  void add(Step step) { steps_.push_back(std::move(step)); }
  // Writes the steps whose values have been copied, up to the first that is still being copied. Waits for steps
  // <= `last`.
  void write_until(std::int64_t last);

 private:
  Write write_;
  std::deque<Step> steps_;
};

class StepLog {
 public:
  // `job` is borrowed. Opens the run of the trackers; other ranks than the main process write to none.
  explicit StepLog(const TrainingJob& job);
  // After an exception, writes the values that have been copied already.
  ~StepLog();
  StepLog(const StepLog&) = delete;
  StepLog& operator=(const StepLog&) = delete;

  // Collective. Logs library versions and the size of the job, and writes the picture of the learning rate. Called
  // once, before the first step.
  void announce(const GradientManager& gradients) const;
  // Collective. Begins to reduce the metrics over ranks and to copy them, statistics of the model and the peak memory
  // to the host, and resets the metrics: later updates are of the next time. Called before the optimiser's step, so
  // that the copy need not wait for the optimiser.
  [[nodiscard]] CollectedValues collect();
  // Takes the values of the current step out of `report`, and writes the steps whose values are there to the trackers
  // (LoggingConfig::max_pending_steps). Called before JobSchedule::advance(), after the optimiser's step: what is
  // enqueued later waits, on the device, until the values of this step are computed.
  void write(StepReport& report);
  // Writes the values of all steps so far. Waits for their copies.
  void write_pending();
  void flush();                    // write_pending(), then flushes the trackers
  void close(RunOutcome outcome);  // flush(), then closes the run
  // Writes a value of an evaluation after the steps that are done, to the last of them; before the first step, to
  // step -1. Called after write_pending().
  void write_evaluation(const std::string& set, const std::string& name, double value);
  // Updates the progress bar. Called after JobSchedule::advance(), since the bar shows the number of completed steps.
  void show(const StepReport& report);
  void finish_bar() { bar_.finish(); }

  [[nodiscard]] TrackerRun& run() const { return *run_; }
  [[nodiscard]] const Logger& log() const { return log_; }
  [[nodiscard]] const Logger* main_log() const { return job_.context.is_main_process() ? &log_ : nullptr; }

 private:
  const TrainingJob& job_;
  ProgressBar bar_;
  Logger log_;
  std::unique_ptr<TrackerRun> run_;
  StageStatistics statistics_;
  StepCosts costs_;
  const SideStream copies_;
  PendingSteps pending_;
  bool is_closed_ = false;
};

}  // namespace d9d
