#include "d9d/loop/run/step_log.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <optional>
#include <utility>

#include <ATen/ATen.h>
#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/core/device/torch_version.h"
#include "d9d/core/error/error_place.h"
#include "d9d/loop/step/local_stages.h"
#include "d9d/metrics/reduce_metrics.h"
#include "d9d/tracker/run_info.h"

namespace d9d {
namespace {

std::string text_of(const char* format, double value) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, format, value);
  return buffer;
}

// "a, b, c and 2 more"
std::string first_of(const std::vector<std::string>& names) {
  constexpr std::size_t kMost = 3;
  std::string text = names.front();
  for (std::size_t i = 1; i < std::min(kMost, names.size()); ++i) text += cat(", ", names[i]);
  return names.size() <= kMost ? text : cat(text, " and ", names.size() - kMost, " more");
}

RunInfo run_info(const TrainingJob& job, const Logger& log) {
  return {.name = job.config.run.name,
          .description = job.config.run.description.value_or(""),
          .hparams = {{"run", job.config.run.hparams}, {"params", job.hparams}},
          .resume_state = job.tracker_state,
          .log = log};
}

}  // namespace

void PendingSteps::write_until(std::int64_t last) {
  while (!steps_.empty()) {
    const Step& step = steps_.front();
    if (step.index > last && step.collected && !step.collected->values.is_complete()) return;
    for (const auto& [name, value] : step.known) write_(step.index, name, value);
    if (step.collected) {
      const double* value = step.collected->values.wait().const_data_ptr<double>();
      for (const auto& [name, size] : step.collected->series) {
        size == 1 ? write_(step.index, name, *value) : write_(step.index, name, CountHistogram{{value, value + size}});
        value += size;
      }
    }
    steps_.pop_front();
  }
}

StepLog::StepLog(const TrainingJob& job)
    : job_(job),
      bar_({.label = "train", .total = job.schedule.total_steps(), .initial = job.schedule.current_step()}),
      log_(job.context.log().with_sink(bar_.sink())),
      run_(with_error_place("in trainer.logging.tracker", [&] { return job.tracker->open(run_info(job, log_)); })),
      statistics_(job.context.mesh(MeshDomain::kRegular).slice({"pp"})),
      costs_(job.context, job.flops_per_token),
      copies_(job.context.device()),
      pending_([this](std::int64_t step, const std::string& name, const TrackerValue& value) {
        run_->write({.name = name, .step = step, .context = {{"stage", "train"}}}, value);
      }) {}

StepLog::~StepLog() {
  try {
    if (!is_closed_) pending_.write_until(/*last=*/-1);
  } catch (const std::exception&) {  // the error that ended the run is the one to report
  }
}

void StepLog::announce(const GradientManager& gradients) const {
  const auto [count, trained] = num_parameters(*job_.module, job_.context);
  if (!job_.context.is_main_process()) return;
  log_.info("d9d with ", describe(running_versions()));
  log_.info("training ", job_.config.run.name, ": ", trained < count ? short_number(trained) + " of " : "",
            short_number(count), " parameters, ", job_.schedule.total_steps(), " steps on ", job_.context.world_size(),
            " x ", job_.context.device().str());
  if (job_.schedule.current_step() >= job_.schedule.total_steps()) {
    log_.warning(
        "all steps of this job are done: it goes on from its last checkpoint, and nothing is trained. Raise "
        "trainer.schedule.total_steps, or begin anew in another trainer.checkpointing.save_dir");
  }
  if (job_.rate_picture) {
    run_->write({.name = "lr_schedule", .step = job_.schedule.current_step() - 1, .context = {{"stage", "train"}}},
                TrackerPicture{*job_.rate_picture});
  }
  if (const auto& tied = gradients.tied_names(); !tied.empty()) {
    log_.info("parameters that several pipeline stages have, and train as one: ", first_of(tied));
  }
}

CollectedValues StepLog::collect() {
  std::vector<CollectedValues::Series> series;
  std::vector<at::Tensor> values;
  const auto add = [&](const std::string& name, const at::Tensor& value) {
    keep_for_current_stream(value);
    series.push_back({.name = name, .size = value.numel()});
    values.push_back(value.detach().to(job_.context.device(), at::kDouble).flatten());
  };
  const std::array<const MetricMap*, 2> maps = {&job_.metrics, job_.loss_means.get()};
  std::vector<Metric*> metrics;
  for (const MetricMap* const map : maps) {
    for (const auto& [name, metric] : *map) metrics.push_back(metric.get());
  }
  const std::map<std::string, at::Tensor> statistics = statistics_.gather(job_.module->step_statistics());
  const at::Tensor memory = costs_.peak_memory();
  std::optional<HostCopy> copy;
  // The sums of gradients, the norm and the optimiser do not wait for the metrics, which are reduced on the stream of
  // the copies. All ranks are at the same place of a step here, and operations of a communicator run in the order of
  // their calls whatever their streams are, so that metrics need no communicator of their own.
  StreamEvent done = copies_.run([&] {
    for (const auto& [name, value] : statistics) add(name, value);
    reduce_metrics(metrics, metric_ranks(job_.context));
    for (const MetricMap* const map : maps) {
      for (const auto& [name, metric] : *map) {
        const at::Tensor results = results_of(name, *metric);
        keep_for_current_stream(results);
        for (std::string& each : series_of(name, *metric)) {
          D9D_CHECK(!statistics.contains(each), StateError,
                    "[loop::trainer] expected names of metrics other than those of the model's statistics, got '", each,
                    "'. Rename it in TrainTask::create_metrics, to metric/", name, " for instance.");
          series.push_back({.name = std::move(each)});
        }
        values.push_back(results.to(job_.context.device()));
        metric->reset();
      }
    }
    if (!job_.context.device().is_cpu()) add("device_peak_bytes", memory[0]);
    add("host_bytes", memory[1]);
    copy.emplace(at::cat(values), copies_, job_.context.world());
  });
  return {.series = std::move(series), .values = *std::move(copy), .done = std::move(done)};
}

void StepLog::write(StepReport& report) {
  const std::int64_t step = job_.schedule.current_step();
  PendingSteps::Step values{.index = step, .collected = std::exchange(report.collected, std::nullopt)};
  if (values.collected) values.collected->done.wait();  // later work may write what metrics and statistics read
  const auto add = [&](const char* name, double value) { values.known.emplace_back(name, value); };
  add("loss", report.gradients.loss);
  if (job_.schedule.should_do_action(job_.config.gradient_clipping.log_total_steps)) {
    add("grad_norm", report.gradients.norm);
  }
  for (const auto& [name, norm] : report.gradients.layer_norms) values.known.emplace_back(name, norm);
  add("lr", report.learning_rate);
  for (const auto& [group, factor] : job_.optimizer.rate_factors()) {
    values.known.emplace_back("lr/" + group, factor * report.learning_rate);
  }
  add("num_tokens", static_cast<double>(report.gradients.num_tokens));
  add("step_seconds", report.seconds);
  add("data_seconds", report.votes.data_seconds);
  costs_.add_tokens(report.gradients.num_tokens);
  if (values.collected) {
    const Throughput rate = costs_.throughput();
    add("tokens_per_second", rate.tokens_per_second);
    if (rate.mfu) add("mfu", *rate.mfu);
    add("skipped_steps", static_cast<double>(step + 1 - job_.updates.num_updates()));
  }
  pending_.add(std::move(values));
  pending_.write_until(step - job_.config.logging.max_pending_steps);
}

void StepLog::write_pending() { pending_.write_until(job_.schedule.current_step()); }

void StepLog::flush() {
  write_pending();
  run_->flush();
}

void StepLog::close(RunOutcome outcome) {
  flush();
  is_closed_ = true;
  run_->close(outcome);
}

void StepLog::write_evaluation(const std::string& set, const std::string& name, double value) {
  run_->write({.name = name, .step = job_.schedule.current_step() - 1, .context = {{"stage", set}}}, value);
}

void StepLog::show(const StepReport& report) {
  if (!job_.context.is_main_process()) return;
  const double tokens_per_second = static_cast<double>(report.gradients.num_tokens) / report.seconds;
  std::vector<std::string> fields = {
      text_of("loss %.4f", report.gradients.loss), text_of("grad %.3f", report.gradients.norm),
      text_of("lr %.2e", report.learning_rate), short_number(tokens_per_second) + " tok/s",
      text_of("%.1fG", static_cast<double>(costs_.memory_now()) / (1 << 30))};
  const double data_share = report.votes.data_seconds / report.seconds;
  if (data_share >= 0.05) fields.push_back(text_of("data %.0f%%", 100 * data_share));
  bar_.update(job_.schedule.current_step(), std::move(fields));
}

}  // namespace d9d
