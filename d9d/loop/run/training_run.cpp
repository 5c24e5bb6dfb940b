#include "d9d/loop/run/training_run.h"

#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/base/interrupt.h"
#include "d9d/base/progress/progress_bar.h"
#include "d9d/core/collectives/gather.h"
#include "d9d/core/device/host_copy.h"
#include "d9d/core/device/torch_version.h"
#include "d9d/loop/checkpoint/job_saves.h"
#include "d9d/loop/checks/first_step_checks.h"
#include "d9d/loop/step/gradient_manager.h"
#include "d9d/loop/step/stage_statistics.h"
#include "d9d/loop/task/train_events.h"
#include "d9d/tracker/build_tracker.h"
#include "d9d/tracker/multi_tracker.h"
#include "d9d/tracker/null_tracker.h"
#include "d9d/tracker/run_info.h"

namespace d9d {
namespace {

using Clock = std::chrono::steady_clock;

std::string text_of(const char* format, double value) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, format, value);
  return buffer;
}

// What a step logs besides its loss. The copy from the device to the host is in flight.
struct LoggedValues {
  struct Series {
    std::string name;
    std::int64_t size = 1;  // more than 1: counts
  };
  std::vector<Series> series;
  HostCopy values;  // [sum of sizes] fp64
};

// What one step reports.
struct StepReport {
  StepGradients gradients;
  std::optional<LoggedValues> logged;
  double learning_rate = 0.0;
  double seconds = 0.0;
};

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

// "a, b, c and 2 more"
std::string first_of(const std::vector<std::string>& names) {
  constexpr std::size_t kMost = 3;
  std::string text = names.front();
  for (std::size_t i = 1; i < std::min(kMost, names.size()); ++i) text += cat(", ", names[i]);
  return names.size() <= kMost ? text : cat(text, " and ", names.size() - kMost, " more");
}

// Collective: the stages of a pipeline have a part of the parameters each.
void announce(const TrainingJob& job, const GradientManager& gradients, const Logger& log) {
  double count = 0;
  for (const nlohmann::json& of_rank :
       all_gather_object(gradients.num_parameters(), job.context.mesh(MeshDomain::kRegular).slice({"pp"}))) {
    count += of_rank.get<double>();
  }
  if (!job.context.is_main_process()) return;
  log.info("d9d with ", describe(running_versions()));
  log.info("training ", job.config.run.name, ": ", short_number(count), " parameters, ", job.schedule.total_steps(),
           " steps on ", job.context.world_size(), " x ", job.context.device().str());
  if (const auto& tied = gradients.tied_names(); !tied.empty()) {
    log.info("parameters that several pipeline stages have, and train as one: ", first_of(tied));
  }
}

RunInfo run_info(const TrainingJob& job) {
  return {.name = job.config.run.name,
          .description = job.config.run.description.value_or(""),
          .hparams = {{"run", job.config.run.hparams}, {"params", job.hparams}},
          .resume_state = job.tracker_state};
}

// Only the main process writes to trackers.
std::unique_ptr<TrackerRun> open_run(const TrainingJob& job, const Logger& log) {
  if (!job.context.is_main_process()) return NullTracker().open(run_info(job));
  std::unique_ptr<Tracker> configured = build_tracker(job.config.logging.tracker, log);
  if (job.tracker == nullptr) return configured->open(run_info(job));
  return MultiTracker({std::move(configured), job.tracker}).open(run_info(job));
}

// Empty if no handler watches the optimiser's step: then that step need not wait until the host knows the loss.
AroundStep around_optimizer_step(const TrainingJob& job, const TrainStep& step) {
  const EventBus& events = *job.events;
  if (!events.has_handlers(kTrainOptimizerStepPre) && !events.has_handlers(kTrainOptimizerStepPost)) return {};
  return [&](const std::function<void()>& step_optimizer) {
    job.events->run_between(kTrainOptimizerStepPre, kTrainOptimizerStepPost, step, [&] {
      job.freeze_guard.check();  // a handler has just run
      step_optimizer();
    });
  };
}

// Runs steps; owns objects that live as long as the run.
class TrainingRun {
 public:
  TrainingRun(TrainingJob& job, PackRunner& packs)
      : job_(job),
        packs_(packs),
        bar_({.label = "train", .total = job.schedule.total_steps(), .initial = job.schedule.current_step()}),
        log_(job.context.log().with_sink(bar_.sink())),
        run_(open_run(job, log_)),
        gradients_(job.context, *job.module, job.config.gradient_manager, job.config.gradient_clipping,
                   job.config.cuda_graph ? GradientMemory::kKept : GradientMemory::kOfStep, job.stages),
        statistics_(job.context.mesh(MeshDomain::kRegular).slice({"pp"})) {}

  TrainingOutcome run() {
    announce(job_, gradients_, log_);
    set_timeout(job_.config.timeout.init_timeout);
    job_.events->trigger(kTrainReady, {.run = *run_});
    while (!job_.schedule.is_done() && !stops_) {
      const StepReport report = run_step();
      log_step(report);
      stops_ = report.gradients.stops;
      finish_step(report);
      show_step(report);
      if (!has_stepped_) set_timeout(job_.config.timeout.step_timeout);
      has_stepped_ = true;
    }
    set_timeout(job_.config.timeout.init_timeout);  // an export may follow, which takes longer than a step
    gradients_.close();
    bar_.finish();
    if (job_.schedule.is_done()) job_.updates.check(job_.schedule.total_steps(), main_log());
    run_->close(RunOutcome::kCompleted);
    if (job_.schedule.is_done()) return TrainingOutcome::kFinished;
    log_.warning("stopped after step ", job_.schedule.current_step(), " of ", job_.schedule.total_steps(), " as asked");
    return TrainingOutcome::kInterrupted;
  }

 private:
  const Logger* main_log() const { return job_.context.is_main_process() ? &log_ : nullptr; }
  void set_timeout(std::int64_t seconds) const { job_.context.set_timeout(std::chrono::seconds(seconds)); }

  StepReport run_step() {
    saves_.wait_for_copies_before_handlers();
    job_.events->trigger(kTrainStepPre, step_);
    if (!was_evaluating_) was_evaluating_ = warn_of_evaluation(job_.stages, job_.context, job_.schedule.current_step());
    const Clock::time_point start = Clock::now();
    D9D_CHECK(packs_.fetch(), StateError, "[loop::training] expected data for ", job_.schedule.total_steps(),
              " steps, got an end after ", job_.schedule.current_step(),
              ". Lower trainer.schedule.total_steps or add data.");
    StepReport report;
    std::int64_t num_tokens = 0;
    job_.events->run_between(kTrainForwardBackwardPre, kTrainForwardBackwardPost, step_,
                             [&] { num_tokens = packs_.run(gradients_); });
    if (job_.schedule.should_do_action(job_.config.logging.period_steps, {.always_at_last_step = true})) {
      report.logged = collect_values();
    }
    report.learning_rate = learning_rate();
    first_update_.begin(*job_.module, report.learning_rate);
    saves_.wait_for_copies();
    const RankReport own{.step = job_.schedule.current_step(),
                         .num_tokens = num_tokens,
                         .wants_to_stop = interrupt_.requested(),
                         .save = saves_.progress(),
                         .next_microbatches = packs_.num_next()};
    report.gradients = gradients_.apply(job_.optimizer, report.learning_rate, own, around_optimizer_step(job_, step_));
    packs_.tell_next(report.gradients.next_microbatches);
    saves_.advance(report.gradients.save, report.gradients.stops);
    first_update_.end(job_.context, report.gradients.is_usable && report.gradients.norm > 0);
    job_.updates.add(report.gradients, report.learning_rate, job_.schedule.current_step(), main_log());
    report.seconds = std::chrono::duration<double>(Clock::now() - start).count();
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

  void log_step(const StepReport& report) {
    const GradientClippingConfig& clipping = job_.config.gradient_clipping;
    write("loss", report.gradients.loss);
    if (job_.schedule.should_do_action(clipping.log_total_steps)) write("grad_norm", report.gradients.norm);
    write("lr", report.learning_rate);
    write("num_tokens", static_cast<double>(report.gradients.num_tokens));
    write("step_seconds", report.seconds);
    if (!report.logged) return;
    const double* value = report.logged->values.wait().const_data_ptr<double>();
    for (const auto& [name, size] : report.logged->series) {
      size == 1 ? write(name, *value) : write(name, CountHistogram{{value, value + size}});
      value += size;
    }
  }

  // Called before the optimiser's kernels are launched, so that the host need not wait for them when it logs.
  std::optional<LoggedValues> collect_values() {
    std::vector<LoggedValues::Series> series;
    std::vector<at::Tensor> values;
    const auto add = [&](const std::string& name, const at::Tensor& value) {
      series.push_back({.name = name, .size = value.numel()});
      values.push_back(value.detach().to(job_.context.device(), at::kDouble).flatten());
    };
    for (const auto& [name, value] : statistics_.gather(job_.module->step_statistics())) add(name, value);
    for (const MetricMap* metrics : {&job_.metrics, &std::as_const(*job_.loss_means)}) {
      for (const auto& [name, metric] : *metrics) {
        metric->sync(job_.context.mesh(MeshDomain::kBatch).slice({"pp", "dp", "cp"}));
        add(name, metric->compute());
        metric->reset();
      }
    }
    if (series.empty()) return std::nullopt;
    return LoggedValues{.series = std::move(series),
                        .values = HostCopy(at::cat(values), copies_, job_.context.world())};
  }

  void write(const std::string& name, const TrackerValue& value) {
    run_->write({.name = name, .step = job_.schedule.current_step(), .context = {{"stage", "train"}}}, value);
  }

  void finish_step(const StepReport& report) {
    job_.module->finish_step(report.gradients.is_usable ? StepOutcome::kUpdated : StepOutcome::kSkipped);
    job_.lr_scheduler.step();
    gradients_.reset();
    if (job_.schedule.should_do_action(job_.config.gc.period_steps)) malloc_trim(0);
    job_.events->trigger(kTrainStepPost, finished_step(step_, report));
    job_.schedule.advance();
    const bool is_last = stops_ || job_.schedule.is_done();
    if (saves_.is_due(is_last)) save(is_last);
  }

  void save(bool is_last) {
    const bool waits = saves_.will_wait(is_last);
    if (waits) set_timeout(job_.config.timeout.init_timeout);  // writing takes longer than a step
    run_->flush();
    saves_.save({.data = packs_.data_state(), .task = packs_.task_state(), .tracker = run_->state()}, is_last);
    if (waits && has_stepped_) set_timeout(job_.config.timeout.step_timeout);
  }

  void show_step(const StepReport& report) {
    const double tokens_per_second = static_cast<double>(report.gradients.num_tokens) / report.seconds;
    if (!job_.context.is_main_process()) return;
    bar_.update(job_.schedule.current_step(),
                {text_of("loss %.4f", report.gradients.loss), text_of("grad %.3f", report.gradients.norm),
                 text_of("lr %.2e", report.learning_rate), short_number(tokens_per_second) + " tok/s"});
  }

  TrainingJob& job_;
  PackRunner& packs_;
  const TrainStep step_{.schedule = job_.schedule};
  ProgressBar bar_;
  Logger log_;
  std::unique_ptr<TrackerRun> run_;
  GradientManager gradients_;
  StageStatistics statistics_;
  JobSaves saves_{job_};
  const SideStream copies_{job_.context.device()};
  const InterruptScope interrupt_;
  bool stops_ = false;
  bool has_stepped_ = false;
  bool was_evaluating_ = false;
  FirstUpdate first_update_;
};

}  // namespace

TrainingOutcome run_training(TrainingJob& job, PackRunner& packs) {
  job.freeze_guard.check();  // gradients are summed of what is trained now
  if (!job.config.cuda_graph) return TrainingRun(job, packs).run();
  // Graphs cannot be captured on the default stream. Work before and after the run stays on its own stream.
  auto outcome = TrainingOutcome::kInterrupted;
  SideStream(job.context.device()).run([&] { outcome = TrainingRun(job, packs).run(); }).wait();
  return outcome;
}

}  // namespace d9d
