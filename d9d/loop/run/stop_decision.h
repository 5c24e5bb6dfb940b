// Decides whether a run stops before its last step, alike on all ranks: by a signal, or by a StopRequest of the
// program.
//
// Example
//   StopDecision stop(context, schedule, request, "step");
//   stop.begin({.after_step = has_handlers});            // before the first step
//   while (!job.schedule.is_done() && !stop.stops()) {
//     ...                                                // a step
//     stop.take(votes.stops, votes.signal);              // of the step's sums over ranks
//     ...                                                // handlers of kTrainStepPost
//     stop.ask_after_step();
//   }
//   return stop.outcome(log);
#pragma once

#include <string>

#include "d9d/base/log.h"
#include "d9d/core/device/side_stream.h"
#include "d9d/core/dist_context/dist_context.h"
#include "d9d/loop/run/training_run.h"
#include "d9d/loop/task/job_schedule.h"
#include "d9d/loop/task/stop_request.h"

namespace d9d {

class StopDecision {
 public:
  // Which handlers may ask to stop after the votes of their step.
  struct Handlers {
    bool after_step = false;  // of kTrainStepPost
    bool of_evaluation = false;
  };

  // All are borrowed. unit: what the schedule counts, "step" or "pack", for the log.
  StopDecision(const DistContext& context, const JobSchedule& schedule, StopRequest& request, const char* unit)
      : context_(context), schedule_(schedule), request_(request), unit_(unit), side_(context.device()) {}

  // Collective. own: handlers of this rank.
  void begin(const Handlers& own);
  // The same on all ranks. signal: 0: none.
  void take(bool stops, int signal);
  // Collective if a rank has handlers of kTrainStepPost, or of evaluations. Otherwise local.
  void ask_after_step() { ask(handlers_.after_step); }
  void ask_after_evaluation() { ask(handlers_.of_evaluation); }

  [[nodiscard]] bool stops() const { return stops_; }
  [[nodiscard]] int signal() const { return signal_; }  // SIGINT or SIGTERM, which stops the run; 0: none
  // Collective. Called at the end of the run. Logs why it has stopped early, and clears the request, which does not end
  // a later run. is_done: all steps and evaluations have been made.
  [[nodiscard]] TrainingOutcome outcome(const Logger& log, bool is_done);

 private:
  void ask(bool is_needed);
  [[nodiscard]] bool is_so_on_any_rank(bool own) const;
  [[nodiscard]] std::string why() const;

  const DistContext& context_;
  const JobSchedule& schedule_;
  StopRequest& request_;
  const char* unit_;
  const SideStream side_;
  Handlers handlers_;  // on any rank
  bool stops_ = false;
  int signal_ = 0;
};

}  // namespace d9d
