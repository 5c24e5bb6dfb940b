#include "d9d/loop/run/training_run.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <functional>
#include <optional>
#include <utility>

#include "d9d/base/check.h"
#include "d9d/base/interrupt.h"
#include "d9d/core/device/freed_memory.h"
#include "d9d/core/device/named_range.h"
#include "d9d/loop/checkpoint/job_saves.h"
#include "d9d/loop/checks/first_step_checks.h"
#include "d9d/loop/run/budget_check.h"
#include "d9d/loop/run/run_timeouts.h"
#include "d9d/loop/run/step_log.h"
#include "d9d/loop/run/step_profiler.h"
#include "d9d/loop/run/stop_decision.h"
#include "d9d/loop/step/gradient_manager.h"
#include "d9d/loop/task/train_events.h"

namespace d9d {
namespace {

using Clock = std::chrono::steady_clock;

std::optional<std::int64_t> max_skipped(const GradientClippingConfig& config) {
  if (config.max_skipped_in_a_row || !config.spikes) return config.max_skipped_in_a_row;
  return std::max<std::int64_t>(1, config.spikes->window_steps / 2);
}

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

double learning_rate_of(const TrainingJob& job) {
  const double base = job.optimizer.learning_rate(), factor = job.lr_scheduler.factor();
  const double rate = base * factor;
  D9D_CHECK(std::isfinite(rate) && rate >= 0, StateError, "[loop::training] expected a learning rate >= 0 in step ",
            job.schedule.current_step(), ", got ", rate, ": ", base, " of the optimiser times ", factor,
            " of the scheduler. Correct the one that is wrong.");
  return rate;
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

StopDecision::Handlers handlers_that_may_stop(const TrainingJob& job) {
  const EventBus& events = *job.events;
  const bool of_evaluation = events.has_handlers(kTrainEvaluationPre) || events.has_handlers(kTrainEvaluationPost);
  return {.after_step = events.has_handlers(kTrainStepPost),
          .of_evaluation = !job.config.evaluation.empty() && of_evaluation};
}

void warn_of_untaken_states(const EventBus& events, const Logger* log) {
  for (const std::string& name : events.untaken_states()) {
    if (log != nullptr) {
      log->warning("the checkpoint has the state of the handler '", name,
                   "', which this program does not attach: attach it under this name, or what it knew is not used");
    }
  }
}

// If an exception ends the run, drops the gradients of its step, which another run would add to its own.
class ForgottenIfFailed {
 public:
  explicit ForgottenIfFailed(GradientManager& gradients) : gradients_(gradients) {}
  ~ForgottenIfFailed() {
    if (std::uncaught_exceptions() == num_exceptions_) return;
    try {
      gradients_.abandon();
    } catch (const std::exception&) {  // the error that ended the run is the one to report
    }
  }
  ForgottenIfFailed(const ForgottenIfFailed&) = delete;
  ForgottenIfFailed& operator=(const ForgottenIfFailed&) = delete;

 private:
  GradientManager& gradients_;
  const int num_exceptions_ = std::uncaught_exceptions();
};

// Runs the steps, and owns the objects that live as long as the run.
class TrainingRun {
 public:
  TrainingRun(TrainingJob& job, MicrobatchRunner& packs, Evaluations& evaluations, JobExports& exports)
      : job_(job),
        packs_(packs),
        evaluations_(evaluations),
        exports_(exports),
        log_(job),
        gradients_(job.context, *job.module, job.config.gradient_manager, job.config.gradient_clipping,
                   job.config.cuda_graph ? GradientMemory::kKept : GradientMemory::kOfStep, job.stages) {}

  TrainingOutcome run() {
    log_.announce(gradients_);
    timeouts_.begin();
    job_.events->trigger(kTrainReady, {.run = log_.run()});
    warn_of_untaken_states(*job_.events, log_.main_log());
    stop_.begin(handlers_that_may_stop(job_));
    evaluate_at_start();
    if (stop_.signal() == 0 && exports_.is_missing()) exports_.run();  // the job ended between a save and its export
    while (!job_.schedule.is_done() && !stop_.stops()) {
      const std::int64_t index = job_.schedule.current_step();
      profiler_.begin_step(index);
      const StepReport report = run_whole_step(index);
      timeouts_.end_step_of(profiler_, index);
      log_.show(report);
      timeouts_.end_step();
    }
    timeouts_.end();
    gradients_.close();
    profiler_.finish();
    log_.finish_bar();
    const bool has_run = timeouts_.has_stepped() && stop_.signal() == 0;
    if (has_run || job_.schedule.is_done()) job_.updates.check(job_.schedule.current_step(), log_.main_log());
    const bool is_done = job_.schedule.is_done() && !evaluations_.are_due();
    log_.close(stop_.signal() != 0 && !is_done ? RunOutcome::kStopped : RunOutcome::kCompleted);
    return stop_.outcome(log_.log(), is_done);
  }

 private:
  StepReport run_whole_step(std::int64_t index) {
    const NamedRange range([&] { return cat("step ", index); });
    budget_.begin_step();
    StepReport report = run_step();
    budget_.end_step();
    log_.write(report);
    stop_.take(report.votes.stops, report.votes.signal);
    end_step(report);
    return report;
  }

  StepReport run_step() {
    saves_.wait_for_copies_before_handlers();
    job_.events->trigger(kTrainStepPre, step_);
    job_.offloads->check_awake("train a step");
    timeouts_.restore();
    const OffloadList::InUse in_use(*job_.offloads, "a step runs");
    if (!was_evaluating_) was_evaluating_ = warn_of_evaluation(job_.stages, job_.context, job_.schedule.current_step());
    const Clock::time_point start = Clock::now();
    D9D_CHECK(fetch(), StateError, "[loop::training] expected data for ", job_.schedule.total_steps(),
              " steps, got an end after ", job_.schedule.current_step(),
              ". Lower trainer.schedule.total_steps or add data.");
    const double data_seconds = seconds_since(start);
    StepReport report;
    std::int64_t num_tokens = 0;
    job_.events->run_between(kTrainForwardBackwardPre, kTrainForwardBackwardPost, step_, [&] {
      const NamedRange range("forward and backward");
      num_tokens = packs_.run(gradients_);
    });
    if (job_.schedule.should_do_action(job_.config.logging.period_steps, {.always_at_last_step = true})) {
      report.collected = log_.collect();
    }
    report.learning_rate = learning_rate_of(job_);
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
                         .limits = job_.spikes.current(),
                         .measures_layers = job_.schedule.should_do_action(job_.config.logging.norms_by_layer)};
    report.gradients = gradients_.apply(job_.optimizer, report.learning_rate, own, around_optimizer_step(job_, step_));
    if (job_.ema && report.gradients.is_usable) job_.ema->update();
    report.votes = read_votes(report.gradients.numbers);
    packs_.tell_next(report.votes.next_microbatches);
    saves_.advance(report.votes.save, report.votes.stops);
    first_update_.end(job_.context, report.gradients.is_usable && report.gradients.norm > 0);
    job_.updates.add(report.gradients, report.learning_rate, job_.schedule.current_step(), log_.main_log());
    job_.updates.check_skipped(max_skipped(job_.config.gradient_clipping));
    job_.spikes.add(report.gradients);
    report.seconds = seconds_since(start);
    return report;
  }

  bool fetch() {
    const NamedRange range("data");
    return packs_.fetch();
  }

  void end_step(const StepReport& report) {
    job_.module->finish_step(report.gradients.is_usable ? StepOutcome::kUpdated : StepOutcome::kSkipped);
    job_.lr_scheduler.step();
    gradients_.reset();
    if (job_.schedule.should_do_action(job_.config.gc.period_steps)) return_freed_memory(job_.context.device());
    job_.events->trigger(kTrainStepPost, finished_step(step_, report));
    job_.offloads->check_awake("go on after the handlers of train.step.post");
    stop_.ask_after_step();
    job_.schedule.advance();
    const bool is_best = evaluate().is_best;
    stop_.ask_after_evaluation();
    const bool is_last = stop_.stops() || job_.schedule.is_done();
    if (saves_.is_due(is_last, is_best)) save(is_last);
    const bool has_time = stop_.signal() == 0 || job_.schedule.is_done();  // else the next start exports
    if (has_time && exports_.is_due()) timeouts_.longer_than_a_step([&] { exports_.run(); });
  }

  // Collective. Runs the evaluations that are due after the steps completed so far, and none if a signal has stopped
  // the run.
  EvaluationsOfStep evaluate() {
    if (stop_.signal() != 0 || !evaluations_.are_due()) return {};
    EvaluationsOfStep done;
    timeouts_.longer_than_a_step([&] { done = evaluations_.run_due(gradients_, log_, interrupt_); });
    stop_.take(/*stops=*/false, done.signal);
    return done;
  }

  // Runs evaluations that are due at the start of the run, and saves nothing: the model is that of a checkpoint or of
  // the source. After the last step it saves the result into the step's checkpoint, since no other will follow.
  void evaluate_at_start() {
    const EvaluationsOfStep done = evaluate();
    const bool saves = done.has_run && done.signal == 0 && job_.schedule.is_done();
    if (saves && saves_.is_due(/*is_last=*/true, done.is_best)) save(/*is_last=*/true);
  }

  void save(bool is_last) {
    job_.offloads->check_awake("save a checkpoint");
    const NamedRange range("save");
    const auto write = [&] {
      log_.flush();
      saves_.save({.data = packs_.data_state(), .task = packs_.task_state(), .tracker = log_.run().state()}, is_last);
    };
    if (!saves_.will_wait(is_last)) return write();
    timeouts_.longer_than_a_step(write);  // waits for the disk
  }

  TrainingJob& job_;
  MicrobatchRunner& packs_;
  Evaluations& evaluations_;
  JobExports& exports_;
  const TrainStep step_{.schedule = job_.schedule, .stop = *job_.stop};
  StepLog log_;
  StepProfiler profiler_{job_.config.profiling, job_.context};
  GradientManager gradients_;
  const ForgottenIfFailed forgotten_if_failed_{gradients_};
  OffloadHooks gradients_asleep_{[this] { gradients_.close(); }};
  const OffloadList::Membership gradients_membership_ = job_.offloads->add(gradients_asleep_);
  JobSaves saves_{job_};
  const InterruptScope interrupt_;
  StopDecision stop_{job_.context, job_.schedule, *job_.stop, "step"};
  RunTimeouts timeouts_{job_.context, job_.config.timeout};
  BudgetCheck budget_{job_};
  bool was_evaluating_ = false;
  FirstUpdate first_update_;
};

}  // namespace

TrainingOutcome run_training(TrainingJob& job, MicrobatchRunner& packs, Evaluations& evaluations, JobExports& exports) {
  job.freeze_guard.check();  // the run sums gradients of the parameters that are trained now
  if (!job.config.cuda_graph) return TrainingRun(job, packs, evaluations, exports).run();
  // CUDA graphs cannot be captured on the default stream, so the run has a stream of its own.
  auto outcome = TrainingOutcome::kInterrupted;
  SideStream(job.context.device()).run([&] { outcome = TrainingRun(job, packs, evaluations, exports).run(); }).wait();
  return outcome;
}

}  // namespace d9d
