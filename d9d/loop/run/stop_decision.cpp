#include "d9d/loop/run/stop_decision.h"

#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/core/collectives/gather.h"
#include "d9d/loop/task/train_events.h"

namespace d9d {

void StopDecision::begin() {
  const EventBus& events = *job_.events;
  has_step_handlers_ = is_so_on_any_rank(events.has_handlers(kTrainStepPost));
  has_evaluation_handlers_ =
      is_so_on_any_rank(!job_.config.evaluation.empty() &&
                        (events.has_handlers(kTrainEvaluationPre) || events.has_handlers(kTrainEvaluationPost)));
}

void StopDecision::take(const JobVotes& votes) {
  stops_ = stops_ || votes.stops;
  take_signal(votes.signal);
}

void StopDecision::take_signal(int signal) {
  if (signal == 0) return;
  stops_ = true;
  signal_ = signal;
}

void StopDecision::ask(bool is_needed) {
  if (is_needed && !stops_) stops_ = is_so_on_any_rank(job_.stop->why().has_value());
}

bool StopDecision::is_so_on_any_rank(bool own) const {
  return count_votes(job_.context, side_, {.asks_to_stop = own}).stops;
}

TrainingOutcome StopDecision::outcome(const Logger& log, bool is_done) {
  const std::string reason = is_done ? "" : why();
  job_.stop->reset();
  if (is_done) return TrainingOutcome::kFinished;
  log.warning("stopped after step ", job_.schedule.current_step(), " of ", job_.schedule.total_steps(), reason);
  if (signal_ == 0) return TrainingOutcome::kStopped;
  job_.context.stopped_by(signal_);
  return TrainingOutcome::kInterrupted;
}

// Collective. Returns " as asked" after a signal, or the request of the first rank that made one.
std::string StopDecision::why() const {
  if (signal_ != 0) return " as asked";
  const nlohmann::json own = job_.stop->why() ? nlohmann::json(*job_.stop->why()) : nlohmann::json();
  for (const nlohmann::json& each : all_gather_object(own, job_.context.mesh(MeshDomain::kBatch))) {
    if (!each.is_null()) return cat(": ", each.get<std::string>());
  }
  return "";
}

}  // namespace d9d
