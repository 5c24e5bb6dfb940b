// A toy job that evaluates on the set "validation" while it trains.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/loop/run/toy_job.h"

namespace d9d::evaluated_job {

inline constexpr std::int64_t kSteps = 4;

inline std::vector<std::vector<toy::Batch>> packs() {
  std::vector<std::vector<toy::Batch>> packs;
  for (std::int64_t step = 0; step < kSteps; ++step) packs.push_back({toy::samples(3 * step, 3)});
  return packs;
}

// Three packs of microbatches of different sizes and weights.
inline std::vector<std::vector<toy::Batch>> evaluated_packs() {
  return {{toy::samples(100, 3), toy::samples(103, 1)}, {toy::samples(104, 2)}, {toy::samples(106, 4)}};
}

class Task : public TrainTask<toy::Types> {
 public:
  ForwardInputs<toy::Types> build_forward_inputs(const toy::Batch& batch) override {
    return {.input = batch.x, .state = {.batch = batch, .output = {}, .token = {}}, .num_tokens = batch.x.size(0)};
  }
  LossResult compute_loss(const at::Tensor& output, toy::State& state, const JobSchedule&) override {
    const at::Tensor weight = state.batch.weights.sum();
    const at::Tensor errors = (output - state.batch.y).square() * state.batch.weights;
    return {.loss = errors.sum() / weight, .loss_weight = weight};
  }
  MetricMap create_metrics() override {
    return {{"num_samples", std::make_shared<SumMetric>()}, {"score", std::make_shared<MeanMetric>()}};
  }
  void update_metrics(const toy::State& state, const MetricMap& metrics) override {
    const auto count = static_cast<double>(state.batch.x.size(0));
    metric_at<SumMetric>(metrics, "num_samples").update(at::scalar_tensor(count, at::kDouble));
    metric_at<MeanMetric>(metrics, "score")
        .update(at::scalar_tensor(score, at::kDouble), at::scalar_tensor(1.0, at::kDouble));
  }
  void register_events(const DistContext&, EventBus& events) override {
    if (on_events) on_events(events);
  }

  double score = 0;
  std::function<void(EventBus&)> on_events;
};

struct Evaluated {
  std::int64_t step;
  std::map<std::string, double> values;
  bool is_best;
};

// A job that evaluates on the set "validation".
struct Job {
  Job() : job(packs()) {
    evaluation.packs = evaluated_packs();
    job.config.evaluation["validation"] = {.period_steps = {EverySteps{2}}};
    task.on_events = [this](EventBus& events) {
      events.subscribe(kTrainEvaluationPre, [this](const EvaluationEvent& event) {
        if (before) before(event);
      });
      events.subscribe(kTrainEvaluationPost, [this](const FinishedEvaluation& event) {
        evaluated.push_back({.step = event.schedule.current_step(), .values = event.values, .is_best = event.is_best});
        if (after) after(event);
      });
    };
  }
  Trainer<toy::Types> trainer() { return trainer_of(task); }
  Trainer<toy::Types> trainer_of(TrainTask<toy::Types>& other) {
    return {job.context,
            job.config,
            {.task = other,
             .model = job.provider,
             .data = job.provider,
             .optimizer = *job.optimizer,
             .lr_scheduler = job.lr_scheduler,
             .evaluation = {{"validation", &evaluation}}}};
  }
  TrainingOutcome train() { return trainer().train(); }
  EvaluationConfig& config() { return job.config.evaluation.at("validation"); }
  [[nodiscard]] std::vector<std::int64_t> steps() const {
    std::vector<std::int64_t> steps;
    for (const Evaluated& each : evaluated) steps.push_back(each.step);
    return steps;
  }
  // The mean of all samples of the set, by the model as it is.
  [[nodiscard]] double loss() const {
    const at::NoGradGuard no_grad;
    double sum = 0, weight = 0;
    for (const auto& pack : evaluated_packs()) {
      for (const toy::Batch& batch : pack) {
        const at::Tensor output = job.provider.model->second(at::tanh(job.provider.model->first(batch.x)));
        sum += ((output - batch.y).square() * batch.weights).sum().item<double>();
        weight += batch.weights.sum().item<double>();
      }
    }
    return sum / weight;
  }

  toy::Job job;
  toy::Provider evaluation;
  Task task;
  std::vector<Evaluated> evaluated;
  std::function<void(const EvaluationEvent&)> before;
  std::function<void(const FinishedEvaluation&)> after;
};

}  // namespace d9d::evaluated_job
