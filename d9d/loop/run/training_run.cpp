#include "d9d/loop/run/training_run.h"

#include <malloc.h>

#include <chrono>
#include <cmath>
#include <functional>
#include <optional>
#include <tuple>
#include <utility>

#include <ATen/ATen.h>
#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/base/interrupt.h"
#include "d9d/core/collectives/gather.h"
#include "d9d/core/device/host_copy.h"
#include "d9d/loop/checkpoint/job_saves.h"
#include "d9d/loop/checks/first_step_checks.h"
#include "d9d/loop/run/step_log.h"
#include "d9d/loop/step/gradient_manager.h"
#include "d9d/loop/task/train_events.h"

namespace d9d {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

FinishedStep finished_step(const TrainStep& step, const StepReport& report) {
  FinishedStep finished{step};
  finished.loss = report.gradients.loss;
  finished.gradient_norm = report.gradients.norm;
  finished.learning_rate = report.learning_rate;
  finished.num_tokens = report.gradients.num_tokens;
  finished.seconds = report.seconds;
  finished.is_updated = report.gradients.is_usable;
  return finished;
}

// Returns an empty function if no handler is subscribed to the optimiser's step, which then need not wait until the
// host knows the loss.
AroundStep around_optimizer_step(const TrainingJob& job, const TrainStep& step) {
  const EventBus& events = *job.events;
  if (!events.has_handlers(kTrainOptimizerStepPre) && !events.has_handlers(kTrainOptimizerStepPost)) return {};
  return [&](const std::function<void()>& step_optimizer) {
    job.events->run_between(kTrainOptimizerStepPre, kTrainOptimizerStepPost, step, [&] {
      job.freeze_guard.check();  // a handler of kTrainOptimizerStepPre has just run
      step_optimizer();
    });
  };
}

// Runs the steps, and owns the objects that live as long as the run.
class TrainingRun {
 public:
  TrainingRun(TrainingJob& job, MicrobatchRunner& packs, Evaluations& evaluations)
      : job_(job),
        packs_(packs),
        evaluations_(evaluations),
        log_(job),
        gradients_(job.context, *job.module, job.config.gradient_manager, job.config.gradient_clipping,
                   job.config.cuda_graph ? GradientMemory::kKept : GradientMemory::kOfStep, job.stages) {}

  TrainingOutcome run() {
    log_.announce(gradients_);
    set_timeout(job_.config.timeout.init_timeout);
    job_.events->trigger(kTrainReady, {.run = log_.run()});
    asks_after_step_ = is_so_on_any_rank(job_.events->has_handlers(kTrainStepPost));
    asks_after_evaluation_ = is_so_on_any_rank(job_.events->has_handlers(kTrainEvaluationPre) ||
                                               job_.events->has_handlers(kTrainEvaluationPost));
    (void)evaluate();  // of a step whose checkpoint, if any, exists
    while (!job_.schedule.is_done() && !stops_) {
      StepReport report = run_step();
      log_.write(report);
      stops_ = report.votes.stops;
      signal_ = report.votes.signal;
      end_step(report);
      log_.show(report);
      if (!has_stepped_) set_timeout(job_.config.timeout.step_timeout);
      has_stepped_ = true;
    }
    set_timeout(job_.config.timeout.init_timeout);  // an export takes longer than a step
    gradients_.close();
    log_.finish_bar();
    if (signal_ == 0 || job_.schedule.is_done()) job_.updates.check(job_.schedule.current_step(), log_.main_log());
    log_.close();
    return outcome();
  }

 private:
  // Collective. A request of this run does not end a later one.
  TrainingOutcome outcome() {
    const std::string why = job_.schedule.is_done() ? "" : why_stopped();
    job_.stop->reset();
    if (job_.schedule.is_done()) return TrainingOutcome::kFinished;
    log_.log().warning("stopped after step ", job_.schedule.current_step(), " of ", job_.schedule.total_steps(), why);
    if (signal_ == 0) return TrainingOutcome::kStopped;
    job_.context.stopped_by(signal_);
    return TrainingOutcome::kInterrupted;
  }

  // Collective. Returns " as asked" after a signal, or the request of the first rank that made one.
  [[nodiscard]] std::string why_stopped() const {
    if (signal_ != 0) return " as asked";
    const nlohmann::json own = job_.stop->why() ? nlohmann::json(*job_.stop->why()) : nlohmann::json();
    for (const nlohmann::json& why : all_gather_object(own, job_.context.mesh(MeshDomain::kBatch))) {
      if (!why.is_null()) return cat(": ", why.get<std::string>());
    }
    return "";
  }

  [[nodiscard]] bool is_so_on_any_rank(bool own) const {
    return count_votes(job_.context, side_, {.asks_to_stop = own}).stops;
  }

  void set_timeout(std::int64_t seconds) const { job_.context.set_timeout(std::chrono::seconds(seconds)); }

  StepReport run_step() {
    saves_.wait_for_copies_before_handlers();
    job_.events->trigger(kTrainStepPre, step_);
    if (!was_evaluating_) was_evaluating_ = warn_of_evaluation(job_.stages, job_.context, job_.schedule.current_step());
    const Clock::time_point start = Clock::now();
    D9D_CHECK(packs_.fetch(), StateError, "[loop::training] expected data for ", job_.schedule.total_steps(),
              " steps, got an end after ", job_.schedule.current_step(),
              ". Lower trainer.schedule.total_steps or add data.");
    const double data_seconds = seconds_since(start);
    StepReport report;
    std::int64_t num_tokens = 0;
    job_.events->run_between(kTrainForwardBackwardPre, kTrainForwardBackwardPost, step_,
                             [&] { num_tokens = packs_.run(gradients_); });
    if (job_.schedule.should_do_action(job_.config.logging.period_steps, {.always_at_last_step = true})) {
      report.collected = log_.collect();
    }
    report.learning_rate = learning_rate();
    first_update_.begin(*job_.module, report.learning_rate);
    saves_.wait_for_copies();
    const RankReport own{.step = job_.schedule.current_step(),
                         .num_tokens = num_tokens,
                         .numbers = to_numbers({.signal = interrupt_.signal(),
                                                .asks_to_stop = job_.stop->why().has_value(),
                                                .save = saves_.progress(),
                                                .next_microbatches = packs_.num_next(),
                                                .data_seconds = data_seconds},
                                               job_.context.mesh(MeshDomain::kBatch)),
                         .limits = job_.spikes.current()};
    report.gradients = gradients_.apply(job_.optimizer, report.learning_rate, own, around_optimizer_step(job_, step_));
    report.votes = read_votes(report.gradients.numbers);
    packs_.tell_next(report.votes.next_microbatches);
    saves_.advance(report.votes.save, report.votes.stops);
    first_update_.end(job_.context, report.gradients.is_usable && report.gradients.norm > 0);
    job_.updates.add(report.gradients, report.learning_rate, job_.schedule.current_step(), log_.main_log());
    job_.updates.check_skipped(job_.config.gradient_clipping.max_skipped_in_a_row);
    job_.spikes.add(report.gradients);
    report.seconds = seconds_since(start);
    return report;
  }

  double learning_rate() const {
    const double base = job_.optimizer.learning_rate(), factor = job_.lr_scheduler.factor();
    const double rate = base * factor;
    D9D_CHECK(std::isfinite(rate) && rate >= 0, StateError, "[loop::training] expected a learning rate >= 0 in step ",
              job_.schedule.current_step(), ", got ", rate, ": ", base, " of the optimiser times ", factor,
              " of the scheduler. Correct the one that is wrong.");
    return rate;
  }

  void end_step(const StepReport& report) {
    job_.module->finish_step(report.gradients.is_usable ? StepOutcome::kUpdated : StepOutcome::kSkipped);
    job_.lr_scheduler.step();
    gradients_.reset();
    if (job_.schedule.should_do_action(job_.config.gc.period_steps)) malloc_trim(0);
    job_.events->trigger(kTrainStepPost, finished_step(step_, report));
    if (asks_after_step_ && !stops_) stops_ = is_so_on_any_rank(job_.stop->why().has_value());
    job_.schedule.advance();
    const bool is_best = evaluate();
    const bool is_last = stops_ || job_.schedule.is_done();
    if (saves_.is_due(is_last, is_best)) save(is_last);
  }

  // Collective. Makes the evaluations that are due after the steps that are done. Returns whether one is the best of
  // its set so far.
  bool evaluate() {
    if (signal_ != 0 || !evaluations_.are_due()) return false;
    set_timeout(job_.config.timeout.init_timeout);
    const EvaluationsOfStep done = evaluations_.run_due(gradients_, log_, interrupt_);
    signal_ = done.signal;
    stops_ = stops_ || signal_ != 0;
    if (asks_after_evaluation_ && !stops_) stops_ = is_so_on_any_rank(job_.stop->why().has_value());
    if (has_stepped_) set_timeout(job_.config.timeout.step_timeout);
    return done.is_best;
  }

  void save(bool is_last) {
    const bool waits = saves_.will_wait(is_last);
    if (waits) set_timeout(job_.config.timeout.init_timeout);  // waiting for the disk takes longer than a step
    log_.flush();
    saves_.save({.data = packs_.data_state(), .task = packs_.task_state(), .tracker = log_.run().state()}, is_last);
    if (waits && has_stepped_) set_timeout(job_.config.timeout.step_timeout);
  }

  TrainingJob& job_;
  MicrobatchRunner& packs_;
  Evaluations& evaluations_;
  const TrainStep step_{.schedule = job_.schedule, .stop = *job_.stop};
  StepLog log_;
  GradientManager gradients_;
  JobSaves saves_{job_};
  const InterruptScope interrupt_;
  const SideStream side_{job_.context.device()};
  // Whether a rank has handlers that may ask to stop after the votes of their step: of its end, of evaluations.
  bool asks_after_step_ = false;
  bool asks_after_evaluation_ = false;
  bool stops_ = false;
  int signal_ = 0;  // that stops the run
  bool has_stepped_ = false;
  bool was_evaluating_ = false;
  FirstUpdate first_update_;
};

}  // namespace

TrainingOutcome run_training(TrainingJob& job, MicrobatchRunner& packs, Evaluations& evaluations) {
  job.freeze_guard.check();  // the run sums gradients of the parameters that are trained now
  if (!job.config.cuda_graph) return TrainingRun(job, packs, evaluations).run();
  // CUDA graphs cannot be captured on the default stream, so the run has a stream of its own.
  auto outcome = TrainingOutcome::kInterrupted;
  SideStream(job.context.device()).run([&] { outcome = TrainingRun(job, packs, evaluations).run(); }).wait();
  return outcome;
}

}  // namespace d9d
