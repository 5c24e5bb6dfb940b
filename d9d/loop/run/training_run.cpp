#include "d9d/loop/run/training_run.h"

#include <malloc.h>

#include <chrono>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/base/interrupt.h"
#include "d9d/base/progress/progress_bar.h"
#include "d9d/core/device/host_copy.h"
#include "d9d/core/device/torch_version.h"
#include "d9d/loop/event/train_events.h"
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

// What a step logs beside its loss, on its way from the device.
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

// Runs steps; owns what lives as long as the run.
class TrainingRun {
 public:
  explicit TrainingRun(const TrainingRunParts& parts)
      : parts_(parts),
        bar_({.label = "train", .total = parts.schedule.total_steps(), .initial = parts.schedule.current_step()}),
        log_(parts.context.log().with_sink(bar_.sink())),
        run_(open_run(parts, log_)),
        gradients_(parts.context, parts.module, parts.config.gradient_manager, parts.config.gradient_clipping,
                   parts.config.cuda_graph ? GradientMemory::kKept : GradientMemory::kOfStep) {}

  TrainingOutcome run() {
    if (parts_.context.is_main_process()) announce();
    set_timeout(parts_.config.timeout.init_timeout);
    parts_.events.trigger(kTrainReady, {.run = *run_});
    while (!parts_.schedule.is_done() && !stops_) {
      const StepReport report = run_step();
      log_step(report);
      finish_step(report.gradients.is_usable ? StepOutcome::kUpdated : StepOutcome::kSkipped);
      show_step(report);
      stops_ = report.gradients.stops;
      if (!has_stepped_) set_timeout(parts_.config.timeout.step_timeout);
      has_stepped_ = true;
    }
    set_timeout(parts_.config.timeout.init_timeout);  // what comes now, an export, takes its time
    gradients_.close();
    bar_.finish();
    run_->close(RunOutcome::kCompleted);
    if (parts_.schedule.is_done()) return TrainingOutcome::kFinished;
    log_.warning("stopped after step ", parts_.schedule.current_step(), " of ", parts_.schedule.total_steps(),
                 " as asked");
    return TrainingOutcome::kInterrupted;
  }

 private:
  // One rank writes for all.
  static std::unique_ptr<TrackerRun> open_run(const TrainingRunParts& parts, const Logger& log) {
    if (!parts.context.is_main_process()) return NullTracker().open(run_info(parts));
    std::unique_ptr<Tracker> configured = build_tracker(parts.config.logging.tracker, log);
    if (parts.tracker == nullptr) return configured->open(run_info(parts));
    return MultiTracker({std::move(configured), parts.tracker}).open(run_info(parts));
  }

  static RunInfo run_info(const TrainingRunParts& parts) {
    return {.name = parts.config.run.name,
            .description = parts.config.run.description.value_or(""),
            .hparams = {{"run", parts.config.run.hparams}, {"params", parts.hparams}}};
  }

  void announce() const {
    log_.info("d9d with ", describe(running_versions()));
    log_.info("training ", parts_.config.run.name, ": ", num_parameters(), " parameters, ",
              parts_.schedule.total_steps(), " steps on ", parts_.context.world_size(), " x ",
              parts_.context.device().str());
  }

  void set_timeout(std::int64_t seconds) const { parts_.context.set_timeout(std::chrono::seconds(seconds)); }

  std::string num_parameters() const {
    double count = 0;
    for (const auto& [name, parameter] : parts_.module.named_parameters()) {
      count += static_cast<double>(parameter->global_numel());
    }
    return short_number(count);
  }

  StepReport run_step() {
    EventBus& events = parts_.events;
    events.trigger(kTrainStepPre, step_);
    const Clock::time_point start = Clock::now();
    D9D_CHECK(parts_.packs.fetch(), StateError, "[loop::training] expected data for ", parts_.schedule.total_steps(),
              " steps, got an end after ", parts_.schedule.current_step(),
              ". Lower trainer.schedule.total_steps or add data.");
    StepReport report;
    std::int64_t num_tokens = 0;
    events.run_between(kTrainForwardBackwardPre, kTrainForwardBackwardPost, step_,
                       [&] { num_tokens = parts_.packs.run(gradients_, parts_.schedule); });
    const PendingStep pending =
        gradients_.sum_step({.num_tokens = num_tokens, .wants_to_stop = interrupt_.requested()});
    report.learning_rate = parts_.optimizer.learning_rate() * parts_.lr_scheduler.factor();
    if (parts_.schedule.should_do_action(parts_.config.logging.period_steps, {.always_at_last_step = true})) {
      report.logged = collect_values();
    }
    report.gradients = update(pending, report.learning_rate);
    if (!report.gradients.is_usable && parts_.context.is_main_process()) {
      log_.warning("step ", parts_.schedule.current_step(), " changed nothing: ", report.gradients.reason);
    }
    report.seconds = std::chrono::duration<double>(Clock::now() - start).count();
    return report;
  }

  // An optimiser that scales gradients gets its work before the host knows the step's loss, and the device never waits
  // for the host. Handlers of the optimiser's step, which some ranks may have and others not, see gradients that are
  // divided and clipped; the parameters become the same bit for bit.
  StepGradients update(const PendingStep& pending, double learning_rate) {
    EventBus& events = parts_.events;
    Optimizer& optimizer = parts_.optimizer;
    const bool are_seen = events.has_handlers(kTrainOptimizerStepPre) || events.has_handlers(kTrainOptimizerStepPost);
    if (optimizer.scales_gradients() && !are_seen) {
      optimizer.step(learning_rate, pending.grad_scale);
      StepGradients step = gradients_.read_step(pending);
      if (!step.is_usable) optimizer.forget_step();
      gradients_.refuse_non_finite(step);
      return step;
    }
    StepGradients step = gradients_.read_step(pending);
    gradients_.refuse_non_finite(step);
    if (!step.is_usable) return step;
    gradients_.scale_gradients(step);
    events.run_between(kTrainOptimizerStepPre, kTrainOptimizerStepPost, step_, [&] { optimizer.step(learning_rate); });
    return step;
  }

  void log_step(const StepReport& report) {
    const GradientClippingConfig& clipping = parts_.config.gradient_clipping;
    write("loss", report.gradients.loss);
    if (parts_.schedule.should_do_action(clipping.log_total_steps)) write("grad_norm", report.gradients.norm);
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

  // Before the optimiser has work: the host need not wait for that.
  std::optional<LoggedValues> collect_values() const {
    std::vector<LoggedValues::Series> series;
    std::vector<at::Tensor> values;
    const auto add = [&](const std::string& name, const at::Tensor& value) {
      series.push_back({.name = name, .size = value.numel()});
      values.push_back(value.detach().to(parts_.context.device(), at::kDouble).flatten());
    };
    for (const auto& [name, value] : parts_.module.step_statistics()) add(name, value);
    for (const auto& [name, metric] : parts_.metrics) {
      metric->sync(parts_.context.mesh(MeshDomain::kBatch).slice({"pp", "dp", "cp"}));
      add(name, metric->compute());
      metric->reset();
    }
    if (series.empty()) return std::nullopt;
    return LoggedValues{.series = std::move(series),
                        .values = HostCopy(at::cat(values), copies_, parts_.context.world())};
  }

  void write(const std::string& name, const TrackerValue& value) {
    run_->write({.name = name, .step = parts_.schedule.current_step(), .context = {{"stage", "train"}}}, value);
  }

  void finish_step(StepOutcome outcome) {
    parts_.module.finish_step(outcome);
    parts_.lr_scheduler.step();
    gradients_.reset();
    if (parts_.schedule.should_do_action(parts_.config.gc.period_steps)) malloc_trim(0);
    parts_.events.trigger(kTrainStepPost, step_);
    parts_.schedule.advance();
  }

  void show_step(const StepReport& report) {
    const double tokens_per_second = static_cast<double>(report.gradients.num_tokens) / report.seconds;
    if (!parts_.context.is_main_process()) return;
    bar_.update(parts_.schedule.current_step(),
                {text_of("loss %.4f", report.gradients.loss), text_of("grad %.3f", report.gradients.norm),
                 text_of("lr %.2e", report.learning_rate), short_number(tokens_per_second) + " tok/s"});
  }

  const TrainingRunParts& parts_;
  const TrainStep step_{.schedule = parts_.schedule};
  ProgressBar bar_;
  Logger log_;
  std::unique_ptr<TrackerRun> run_;
  GradientManager gradients_;
  const SideStream copies_{parts_.context.device()};
  const InterruptScope interrupt_;
  bool stops_ = false;
  bool has_stepped_ = false;
};

}  // namespace

TrainingOutcome run_training(const TrainingRunParts& parts) {
  if (!parts.config.cuda_graph) return TrainingRun(parts).run();
  // Graphs cannot be captured on the default stream; work before and after them stays on theirs.
  auto outcome = TrainingOutcome::kInterrupted;
  SideStream(parts.context.device()).run([&] { outcome = TrainingRun(parts).run(); }).wait();
  return outcome;
}

}  // namespace d9d
