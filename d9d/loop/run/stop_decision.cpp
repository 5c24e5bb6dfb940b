#include "d9d/loop/run/stop_decision.h"

#include <limits>

#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/core/collectives/gather.h"
#include "d9d/loop/step/rank_votes.h"

namespace d9d {

void StopDecision::begin(const Handlers& own) {
  handlers_ = {.after_step = is_so_on_any_rank(own.after_step), .of_evaluation = is_so_on_any_rank(own.of_evaluation)};
}

void StopDecision::take(bool stops, int signal) {
  stops_ = stops_ || stops || signal != 0;
  if (signal != 0) signal_ = signal;
}

void StopDecision::ask(bool is_needed) {
  if (is_needed && !stops_) stops_ = is_so_on_any_rank(request_.why().has_value());
}

bool StopDecision::is_so_on_any_rank(bool own) const {
  return count_votes(context_, side_, {.asks_to_stop = own}).stops;
}

TrainingOutcome StopDecision::outcome(const Logger& log, bool is_done) {
  const std::string reason = is_done ? "" : why();
  request_.reset();
  if (is_done) return TrainingOutcome::kFinished;
  const std::int64_t total = schedule_.total_steps();
  const bool is_known = total < std::numeric_limits<std::int64_t>::max();
  log.warning("stopped after ", unit_, " ", schedule_.current_step(), is_known ? cat(" of ", total) : "", reason);
  if (signal_ == 0) return TrainingOutcome::kStopped;
  context_.stopped_by(signal_);
  return TrainingOutcome::kInterrupted;
}

// Collective. Returns " as asked" after a signal, or the request of the first rank that made one.
std::string StopDecision::why() const {
  if (signal_ != 0) return " as asked";
  const nlohmann::json own = request_.why() ? nlohmann::json(*request_.why()) : nlohmann::json();
  for (const nlohmann::json& each : all_gather_object(own, context_.mesh(MeshDomain::kBatch))) {
    if (!each.is_null()) return cat(": ", each.get<std::string>());
  }
  return "";
}

}  // namespace d9d
