#include "d9d/loop/run/evaluations.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "d9d/base/check.h"
#include "d9d/core/device/host_copy.h"
#include "d9d/core/device/named_range.h"
#include "d9d/core/error/error_place.h"
#include "d9d/loop/checkpoint/export_model.h"
#include "d9d/loop/checkpoint/job_checkpoints.h"
#include "d9d/loop/step/local_stages.h"
#include "d9d/loop/step/random_numbers_of_training.h"
#include "d9d/loop/step/training_stage.h"
#include "d9d/loop/task/train_events.h"
#include "d9d/metrics/aggregates.h"
#include "d9d/metrics/reduce_metrics.h"
#include "d9d/modules/eval_scope.h"
#include "d9d/modules/mixed_precision.h"
#include "d9d/pipelining/schedules/pipeline_schedule.h"

namespace d9d {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kOfAverages = "ema/";  // prefix of values, where the trained weights have values too

EvaluatedWeights evaluated_weights(const TrainerConfig& config) {
  return config.ema ? config.ema->evaluate : EvaluatedWeights::kTrained;
}

// While it lives, the stages of a job have the averages of its weights.
class AveragedStages {
 public:
  explicit AveragedStages(TrainingJob& job) : job_(job), weights_(std::in_place, *job.ema) {}
  ~AveragedStages() {
    const at::NoGradGuard no_grad;
    weights_.reset();
    update_copies(copies_of(job_.stages));
    for (const auto& stage : job_.stages) round_parameters(*stage);
  }
  AveragedStages(const AveragedStages&) = delete;
  AveragedStages& operator=(const AveragedStages&) = delete;

 private:
  TrainingJob& job_;
  std::optional<AveragedWeights> weights_;
};

MetricMap own_metrics(AnyTask& task, const TrainingJob& job) {
  MetricMap metrics = checked_metrics(task);
  for (const auto& [name, metric] : metrics) {
    const bool is_of_training =
        std::ranges::any_of(job.metrics, [&](const auto& each) { return each.second == metric; });
    D9D_CHECK(!is_of_training, StateError,
              "[loop::evaluation] expected TrainTask::create_metrics to return new metrics ",
              "for an evaluation, got '", name,
              "' again, of which training keeps the sums. Create metrics in the function, and update those that "
              "update_metrics gets.");
  }
  return metrics;
}

void check_best(const std::string& set, const EvaluationConfig& config, const MetricMap& metrics,
                const TrainingJob& job) {
  if (!config.best) return;
  const std::string key = cat("trainer.evaluation.", set, ".best");
  const std::string& metric = config.best->metric;
  std::vector<std::string> known = {"loss"};
  for (const auto& [name, each] : metrics) std::ranges::move(series_of(name, *each), std::back_inserter(known));
  const bool has_both = evaluated_weights(job.config) == EvaluatedWeights::kBoth;
  if (has_both) {
    for (std::size_t i = 0, count = known.size(); i < count; ++i) known.push_back(kOfAverages + known[i]);
  }
  const bool is_loss = metric.starts_with("loss/") || (has_both && metric.starts_with(cat(kOfAverages, "loss/")));
  const bool is_known = is_loss || std::ranges::find(known, metric) != known.end();
  std::string names;
  for (const std::string& each : known) names += cat(names.empty() ? "" : ", ", each);
  D9D_CHECK(is_known, ConfigError, "[loop::evaluation] expected ", key, ".metric to be one of {", names, "}, got '",
            metric, "'. Name one of these.");
  D9D_CHECK(saves_checkpoints(job.config.checkpointing) || config.best->export_to, ConfigError,
            "[loop::evaluation] expected a place for the best model of ", key,
            ", got a job that saves no checkpoints. Set trainer.checkpointing.period_steps, or ", key, ".export_to.");
}

// "loss 2.4385, accuracy 0.61"
std::string text_of(const std::map<std::string, double>& values) {
  std::string text;
  for (const auto& [name, value] : values) {
    char number[32];
    std::snprintf(number, sizeof number, "%.5g", value);
    text += cat(text.empty() ? "" : ", ", name, " ", number);
  }
  return text;
}

}  // namespace

Evaluations::Evaluations(TrainingJob& job, AnyTask& task, AnyModelProvider& model, const EvaluationPacks& packs,
                         PackReader& training, ReferencePass* reference)
    : job_(job), model_(model), reference_(reference), side_(job.context.device()) {
  if (job_.config.evaluation.empty()) return;
  executor_.emplace(job.context, forwards_on(job.placement),
                    StageLinksConfig{.method = job.config.pipelining.messages});
  for (const auto& [name, config] : job_.config.evaluation) {
    Set& set = sets_.emplace(name, Set{.config = config, .history = job_.evaluations[name]}).first->second;
    set.metrics = own_metrics(task, job_);
    check_best(name, config, set.metrics, job_);
    if (config.best && config.best->export_to) {
      set.export_lock = with_error_place(cat("trainer.evaluation.", name, ".best.export_to"), [&] {
        return prepare_export(job_.context, *config.best->export_to, model_.prepare_export(*job_.module).files,
                              job_.config);
      });
    }
    set.packs =
        std::make_unique<EvenPacks>(job_.context, *packs.at(name), cat("the evaluation set '", name, "'"), &training);
  }
}

bool Evaluations::is_due(const Set& set) const {
  const JobSchedule& schedule = job_.schedule;
  if (set.history.last_step == schedule.current_step()) return false;  // a resumed job has made it
  if (schedule.current_step() == 0) return set.config.at_start;
  return schedule.should_do_action(set.config.period_steps, {.always_at_last_step = true, .after_advance = true});
}

bool Evaluations::are_due() const {
  return std::ranges::any_of(sets_, [this](const auto& each) { return is_due(each.second); });
}

EvaluationsOfStep Evaluations::run_due(GradientManager& gradients, StepLog& log, const InterruptScope& interrupt) {
  EvaluationsOfStep done;
  const std::int64_t step = job_.schedule.current_step();
  for (auto& [name, set] : sets_) {
    if (!is_due(set)) continue;
    done.has_run = true;
    const EvaluationEvent event{.schedule = job_.schedule, .stop = *job_.stop, .set = name};
    job_.events->trigger(kTrainEvaluationPre, event);
    const NamedRange range([&name = name] { return cat("evaluation ", name); });
    const Clock::time_point start = Clock::now();
    std::map<std::string, double> found;
    done.signal = evaluate(name, set, gradients, interrupt, found);
    if (done.signal != 0) return done;
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    set.history.last_step = step;
    const bool is_best = takes_best(name, set, found);
    log.write_pending();
    for (const auto& [metric, value] : found) log.write_evaluation(name, metric, value);
    if (job_.context.is_main_process()) {
      log.log().info("evaluation '", name, "' after step ", step, ": ", text_of(found),
                     is_best ? ", the best so far" : "", " (", seconds, " s)");
    }
    if (is_best && set.config.best->export_to) {
      export_model(job_, model_.prepare_export(*job_.module), *set.config.best->export_to);
    }
    done.is_best = done.is_best || is_best;
    job_.events->trigger(kTrainEvaluationPost, {event, found, is_best});
  }
  return done;
}

int Evaluations::evaluate(const std::string& name, Set& set, GradientManager& gradients,
                          const InterruptScope& interrupt, std::map<std::string, double>& found) {
  const EvaluatedWeights weights = evaluated_weights(job_.config);
  if (weights != EvaluatedWeights::kAveraged) {
    if (const int signal = run_set(name, set, gradients, interrupt); signal != 0) return signal;
    found = values(set);
  }
  if (weights != EvaluatedWeights::kTrained) {
    {
      const AveragedStages averaged(job_);
      if (const int signal = run_set(name, set, gradients, interrupt); signal != 0) return signal;
    }
    const std::string prefix = weights == EvaluatedWeights::kBoth ? kOfAverages : "";
    for (const auto& [metric, value] : values(set)) found.emplace(prefix + metric, value);
  }
  return 0;
}

int Evaluations::run_set(const std::string& name, Set& set, GradientManager& gradients,
                         const InterruptScope& interrupt) {
  job_.offloads->check_awake("evaluate");
  const OffloadList::InUse in_use(*job_.offloads, "an evaluation runs");
  const at::NoGradGuard no_grad;  // not InferenceMode, whose tensors later training steps could not use
  const EvalScope eval(job_.stages);
  const RandomNumbersOfTraining numbers(job_);
  losses_.clear();
  for (const auto& [metric, each] : set.metrics) each->reset();
  gradients.begin_evaluation();
  int signal = 0;
  std::int64_t num_packs = 0;
  try {
    for (; num_packs < set.config.max_packs.value_or(INT64_MAX); ++num_packs) {
      EvenPack next = set.packs->next({.signal = interrupt.signal()});
      signal = next.signal;
      if (next.stops || next.is_end) break;
      run_pack(set, next.pack);
    }
  } catch (const std::exception&) {
    gradients.abandon();
    throw;
  }
  gradients.end_evaluation();
  set.packs->rewind();
  D9D_CHECK(signal != 0 || num_packs > 0, StateError, "[loop::evaluation] expected data in the evaluation set '", name,
            "', got none on any rank. Correct its data, or remove trainer.evaluation.", name, ".");
  return signal;
}

void Evaluations::run_pack(const Set& set, ForwardPack& pack) {
  for (const auto& microbatch : pack.microbatches) {
    if (microbatch->loss_weights.empty()) losses_.try_emplace("loss", std::make_shared<MeanMetric>());
    name_loss_means(losses_, microbatch->loss_weights);
  }
  if (reference_ != nullptr) reference_->run(pack.microbatches, pack.name);
  const EvaluationParts parts{.schedule = job_.schedule, .losses = losses_, .metrics = set.metrics};
  run_forwards<EvaluationStage>(*executor_, *job_.clock, job_.model_stages, pack, parts);
}

std::map<std::string, double> Evaluations::values(const Set& set) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> computed;
  const auto add = [&](const at::Tensor& value) {
    computed.push_back(value.to(job_.context.device(), at::kDouble).flatten());
  };
  std::vector<Metric*> metrics;
  for (const MetricMap* const map : {&std::as_const(losses_), &set.metrics}) {
    for (const auto& [name, metric] : *map) metrics.push_back(metric.get());
  }
  reduce_metrics(metrics, metric_ranks(job_.context));
  for (const auto& [name, mean] : losses_) add(metric_at<MeanMetric>(losses_, name).sums());
  for (const auto& [name, metric] : set.metrics) add(results_of(name, *metric));
  const HostCopy copy(at::cat(computed), side_, job_.context.world());
  const double* value = copy.wait().const_data_ptr<double>();
  std::map<std::string, double> values;
  double sum = 0;  // of the losses' means; one without weight counts as 0
  for (const auto& [name, mean] : losses_) {
    const double weighted = *value++, weight = *value++;
    D9D_CHECK(weight != -std::numeric_limits<double>::infinity(), StateError,
              "[loop::evaluation] expected loss weights >= 0 of TrainTask, got a negative one. Weigh a microbatch by "
              "what its loss is a mean over.");
    values.emplace(name, weighted / weight);
    if (weight != 0) sum += weighted / weight;
  }
  values.emplace("loss", sum);
  for (const auto& [name, metric] : set.metrics) {
    for (const std::string& series : series_of(name, *metric)) values.emplace(series, *value++);
  }
  return values;
}

bool Evaluations::takes_best(const std::string& name, Set& set, const std::map<std::string, double>& values) {
  if (!set.config.best) return false;
  const auto found = values.find(set.config.best->metric);
  D9D_CHECK(found != values.end(), ConfigError, "[loop::evaluation] expected trainer.evaluation.", name,
            ".best.metric to be one of the values {", text_of(values), "}, got '", set.config.best->metric,
            "'. Name one of these.");
  const double value = found->second;
  if (std::isnan(value)) return false;
  nlohmann::ordered_json of = {{"metric", set.config.best->metric}, {"mode", enum_name(set.config.best->mode)}};
  const EvaluatedWeights weights = evaluated_weights(job_.config);
  if (weights == EvaluatedWeights::kAveraged) of["weights"] = enum_name(weights);  // of kBoth the metric's name says it
  if (set.history.best_of != of) set.history.best_value.reset();                   // another measure begins anew
  const auto& best = set.history.best_value;
  const bool is_better = !best || (set.config.best->mode == BestMode::kMin ? value < *best : value > *best);
  if (!is_better) return false;
  set.history.best_of = of;
  set.history.best_value = value;
  set.history.best_step = job_.schedule.current_step();
  return true;
}

}  // namespace d9d
