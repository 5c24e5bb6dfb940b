// Decides whether a run stops before its last step, alike on all ranks: by a signal, or by a StopRequest of the
// program.
//
// Example
//   StopDecision stop(job);
//   stop.begin();                                        // before the first step
//   while (!job.schedule.is_done() && !stop.stops()) {
//     ...                                                // a step
//     stop.take(votes);                                  // of the step's sums over ranks
//     ...                                                // handlers of kTrainStepPost
//     stop.ask_after_step();
//   }
//   return stop.outcome(log);
#pragma once

#include <string>

#include "d9d/base/log.h"
#include "d9d/core/device/side_stream.h"
#include "d9d/loop/run/training_run.h"
#include "d9d/loop/step/rank_votes.h"
#include "d9d/loop/step/training_job.h"

namespace d9d {

class StopDecision {
 public:
  // job: borrowed.
  explicit StopDecision(TrainingJob& job) : job_(job), side_(job.context.device()) {}

  // Collective. Finds out whether any rank has handlers that may ask to stop after the votes of their step.
  void begin();
  void take(const JobVotes& votes);
  void take_signal(int signal);  // the same on all ranks; 0: none
  // Collective if a rank has handlers of kTrainStepPost, or of evaluations. Otherwise local.
  void ask_after_step() { ask(has_step_handlers_); }
  void ask_after_evaluation() { ask(has_evaluation_handlers_); }

  [[nodiscard]] bool stops() const { return stops_; }
  [[nodiscard]] int signal() const { return signal_; }  // SIGINT or SIGTERM, which stops the run; 0: none
  // Collective. Called at the end of the run. Logs why it has stopped early, and clears the request, which does not end
  // a later run. is_done: all steps and evaluations have been made.
  [[nodiscard]] TrainingOutcome outcome(const Logger& log, bool is_done);

 private:
  void ask(bool is_needed);
  [[nodiscard]] bool is_so_on_any_rank(bool own) const;
  [[nodiscard]] std::string why() const;

  TrainingJob& job_;
  const SideStream side_;
  bool has_step_handlers_ = false;  // on any rank
  bool has_evaluation_handlers_ = false;
  bool stops_ = false;
  int signal_ = 0;
};

}  // namespace d9d
