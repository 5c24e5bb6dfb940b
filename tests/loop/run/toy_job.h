// A training job that is small enough to compute by hand: y = second(tanh(first(x))), weighted squared error, and
// records of the order of calls.
#pragma once

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "d9d/blocks/linear/linear.h"
#include "d9d/core/communicator/thread/thread_job.h"
#include "d9d/data/pack/as_pack_stream.h"
#include "d9d/loop/language_model/auto_providers.h"
#include "d9d/loop/run/trainer.h"
#include "d9d/metrics/aggregates.h"

namespace d9d::toy {

using Log = std::vector<std::string>;

struct Batch {
  at::Tensor x;        // [B, 2]
  at::Tensor y;        // [B, 1]
  at::Tensor weights;  // [B, 1], of each sample
  static constexpr auto fields() {
    return record<Batch>(field("x", &Batch::x), field("y", &Batch::y), field("weights", &Batch::weights));
  }
};

struct State {
  Batch batch;
  at::Tensor output;
  std::shared_ptr<int> token;  // exists as long as the state
  static constexpr auto fields() {
    return record<State>(field("batch", &State::batch), field("output", &State::output), field("token", &State::token));
  }
};

struct Types {
  using Batch = toy::Batch;
  using Input = at::Tensor;
  using Shared = std::monostate;
  using Output = at::Tensor;
  using State = toy::State;
};

class Model : public Module {
 public:
  Model() { to(at::kDouble); }
  virtual at::Tensor forward(const at::Tensor& x, const std::monostate&) {
    clocks.emplace_back(random_clock()->microbatch.step, random_clock()->microbatch.number);
    return second(at::tanh(first(x)));
  }
  const ModulePtr<Linear> first = register_module<Linear>("first", LinearConfig{2, 3, true});
  const ModulePtr<Linear> second = register_module<Linear>("second", LinearConfig{3, 1, true});
  std::vector<std::pair<std::uint64_t, std::uint64_t>> clocks;  // step and microbatch of each forward
};

class Task : public TrainTask<Types> {
 public:
  ForwardInputs<Types> build_forward_inputs(const Batch& batch) override {
    log.emplace_back("build");
    auto token = std::make_shared<int>();
    tokens.emplace_back(token);
    return {.input = batch.x,
            .state = {.batch = batch, .output = {}, .token = std::move(token)},
            .num_tokens = batch.x.size(0)};
  }
  LossResult compute_loss(const Output& output, State& state, const JobSchedule& schedule) override {
    log.emplace_back("loss");
    D9D_CHECK(schedule.current_step() != throws_at_step, UsageError, "[toy] the task throws.");
    if (output.requires_grad()) output.register_hook([this](const at::Tensor&) { log.emplace_back("backward"); });
    state.output = output;
    const at::Tensor weight = state.batch.weights.sum();
    const at::Tensor errors = (output - state.batch.y).square() * state.batch.weights;
    return {.loss = errors.sum() / weight.clamp_min(1e-30), .loss_weight = weight};
  }
  MetricMap create_metrics() override { return {{"num_samples", num_samples}}; }
  void update_metrics(const State& state, const MetricMap&) override {
    log.emplace_back(state.output.requires_grad() ? "metrics with a graph" : "metrics");
    num_samples->update(at::scalar_tensor(static_cast<double>(state.batch.x.size(0))));
  }
  void finalize() override { log.emplace_back("finalize"); }

  Log log;
  std::vector<std::weak_ptr<int>> tokens;
  std::int64_t throws_at_step = -1;
  const std::shared_ptr<SumMetric> num_samples = std::make_shared<SumMetric>();
};

// Plain gradient descent, written without the library's base classes. Records its calls.
struct Descent {
  struct Step {
    double learning_rate;
    std::vector<at::Tensor> gradients;
  };
  double learning_rate() const { return base_learning_rate; }
  void step(double learning_rate) {
    const at::NoGradGuard no_grad;
    steps->push_back({.learning_rate = learning_rate, .gradients = {}});
    for (const at::Tensor& parameter : parameters) {
      steps->back().gradients.push_back(parameter.grad().clone());
      parameter.sub_(parameter.grad(), learning_rate);
    }
  }
  std::map<std::string, DTensor> state_dict() const { return {}; }

  double base_learning_rate;
  std::vector<at::Tensor> parameters;
  std::shared_ptr<std::vector<Step>> steps;
};

struct DescentProvider : OptimizerProvider {
  Optimizer build_optimizer(const DistContext&, const TrainableParameters& trainable) override {
    std::vector<at::Tensor> parameters;
    for (const NamedParameter& parameter : trainable.parameters) parameters.push_back(parameter.tensor);
    return Optimizer(Descent{.base_learning_rate = 0.5, .parameters = parameters, .steps = steps});
  }
  const std::shared_ptr<std::vector<Descent::Step>> steps = std::make_shared<std::vector<Descent::Step>>();
};

struct Provider : ModelProvider<Types>, DataProvider<Batch> {
  struct Stream {
    std::optional<std::vector<Batch>> next() {
      if (position == packs.size()) return std::nullopt;
      return packs[position++];
    }
    std::optional<std::int64_t> total_steps() const { return known_total; }
    nlohmann::json state() const { return position; }
    void load_state(const nlohmann::json& state) { position = state; }

    std::vector<std::vector<Batch>> packs;
    std::optional<std::int64_t> known_total;
    std::size_t position = 0;
  };

  ModelStage<Types> initialize_model_stage(const DistContext&, const PipelineStageInfo&) override {
    ++num_models;
    model = make_model();
    return as_model_stage<Types>(model);
  }
  std::optional<PeftConfig> adapters() const override { return method; }
  std::unique_ptr<PackStream<Batch>> build_pack_stream(const DistContext&, std::optional<std::int64_t>) override {
    return as_pack_stream<Batch>(Stream{.packs = packs, .known_total = known_total});
  }

  std::vector<std::vector<Batch>> packs;
  std::optional<std::int64_t> known_total;
  std::function<ModulePtr<Model>()> make_model = [] { return make_module<Model>(); };
  ModulePtr<Model> model;
  std::optional<PeftConfig> method = {};
  int num_models = 0;
};

// All parts of a job that a test may change before train() and inspect afterwards.
struct Job {
  explicit Job(std::vector<std::vector<Batch>> packs) {
    config.schedule.total_steps = std::ssize(packs);
    provider.packs = std::move(packs);
    config.run.name = "toy";
    config.logging.tracker = JsonlTrackerConfig{.path = metrics_file()};
    config.gc.period_steps = {StepActionMode::kDisable};
    config.checkpointing.period_steps = {StepActionMode::kDisable};
  }
  Trainer<Types> make_trainer() { return make_trainer(context, task); }
  // A trainer on other ranks, or with a task of the test.
  Trainer<Types> make_trainer(const DistContext& ranks, TrainTask<Types>& own_task) {
    return {
        ranks,
        config,
        {.task = own_task, .model = provider, .data = provider, .optimizer = *optimizer, .lr_scheduler = lr_scheduler}};
  }
  TrainingOutcome train() { return make_trainer().train(); }

  static std::filesystem::path metrics_file() {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    return std::filesystem::path(::testing::TempDir()) / (std::string("d9d_") + test->name() + ".jsonl");
  }
  // The logged JSON objects, one for each step.
  static std::vector<nlohmann::json> logged() {
    std::ifstream file(metrics_file());
    std::vector<nlohmann::json> lines;
    for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
    return lines;
  }

  DistContext context = DistContext({.world = one_rank_world()});
  TrainerConfig config;
  Task task;
  Provider provider;
  std::shared_ptr<DescentProvider> descent = std::make_shared<DescentProvider>();
  std::shared_ptr<OptimizerProvider> optimizer = descent;
  AutoLRSchedulerProvider lr_scheduler{PiecewiseConfig{
      .initial_multiplier = 1.0, .phases = {RestPhaseConfig{.target_multiplier = 0.5, .curve = LinearCurveConfig{}}}}};
};

// `count` samples from number `first` on. Weights are these numbers plus 1, so that all differ.
inline Batch samples(std::int64_t first, std::int64_t count) {
  const at::Tensor number = at::arange(first, first + count, at::kDouble).unsqueeze(1);
  const at::Tensor x = at::sin(at::cat({number, number * 1.7 + 1}, 1));
  return {.x = x, .y = x.select(1, 0).unsqueeze(1) - 0.5 * x.select(1, 1).unsqueeze(1), .weights = number + 1};
}

}  // namespace d9d::toy
