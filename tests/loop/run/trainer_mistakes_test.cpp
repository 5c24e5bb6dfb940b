// Mistakes in the parts of a job that, without a check, would crash it or train something else silently.
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/metrics/compose_metric.h"

#include "tests/loop/run/toy_job.h"

namespace d9d::trainer_mistakes_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

toy::Job small_job() { return toy::Job({{toy::samples(0, 2)}, {toy::samples(2, 2)}}); }

struct EmptyProvider : toy::Provider {
  ModelStage<toy::Types> initialize_model_stage(const DistContext&, const PipelineStageInfo&) override { return {}; }
};
struct StreamlessProvider : toy::Provider {
  std::unique_ptr<PackStream<toy::Batch>> build_pack_stream(const DistContext&, std::optional<std::int64_t>) override {
    return nullptr;
  }
};

template <class Model, class Data>
TrainingOutcome train_with(toy::Job& job, Model& model, Data& data) {
  return Trainer<toy::Types>(job.context, job.config,
                             {.task = job.task,
                              .model = model,
                              .data = data,
                              .optimizer = *job.optimizer,
                              .lr_scheduler = job.lr_scheduler})
      .train();
}

TEST(TrainerMistakes, A_provider_that_returns_nothing_is_named) {
  toy::Job job = small_job();
  EmptyProvider empty;
  EXPECT_THAT(
      [&] { (void)train_with(job, empty, job.provider); },
      ThrowsMessage<StateError>(AllOf(HasSubstr("ModelProvider::initialize_model_stage"), HasSubstr("got null"))));
  StreamlessProvider streamless;
  EXPECT_THAT([&] { (void)train_with(job, job.provider, streamless); },
              ThrowsMessage<StateError>(AllOf(HasSubstr("DataProvider::build_pack_stream"), HasSubstr("got null"))));
}

struct NamedMetrics : toy::Task {
  explicit NamedMetrics(MetricMap own) : metrics(std::move(own)) {}
  MetricMap create_metrics() override { return metrics; }
  MetricMap metrics;
};

TEST(TrainerMistakes, A_metric_with_the_name_of_a_logged_value_is_refused) {
  toy::Job job = small_job();
  for (const char* name : {"loss", "lr", "grad_norm", "num_tokens", "step_seconds", "loss/main", "lr/default",
                           "grad_norm/first", "param_norm/first"}) {
    NamedMetrics task({{name, std::make_shared<SumMetric>()}});
    EXPECT_THAT([&] { (void)job.make_trainer(job.context, task); },
                ThrowsMessage<StateError>(AllOf(HasSubstr(cat("got '", name, "'")), HasSubstr("create_metrics"))));
  }
  NamedMetrics twice({{"a", std::make_shared<ComposeMetric>(MetricMap{{"b", std::make_shared<SumMetric>()}})},
                      {"a/b", std::make_shared<SumMetric>()}});
  EXPECT_THAT([&] { (void)job.make_trainer(job.context, twice); },
              ThrowsMessage<StateError>(HasSubstr("got 'a/b' twice")));
  NamedMetrics null({{"accuracy", nullptr}});
  EXPECT_THAT([&] { (void)job.make_trainer(job.context, null); },
              ThrowsMessage<StateError>(HasSubstr("got null as 'accuracy'")));
}

// A custom scheduler whose factor is always `value`.
struct Constant {
  double value;
  double factor() const { return value; }
  void step() {}
  nlohmann::ordered_json state() const { return nullptr; }
  void load_state(const nlohmann::ordered_json&) {}
};
struct ConstantProvider : LearningRateSchedulerProvider {
  explicit ConstantProvider(double factor) : value(factor) {}
  LearningRateScheduler build_scheduler(const DistContext&, std::int64_t) override {
    return LearningRateScheduler(Constant{value});
  }
  double value;
};

TEST(TrainerMistakes, A_factor_that_gives_no_learning_rate_is_refused_before_the_step) {
  for (const double factor :
       {-1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    toy::Job job = small_job();
    ConstantProvider scheduler(factor);
    Trainer<toy::Types> trainer(job.context, job.config,
                                {.task = job.task,
                                 .model = job.provider,
                                 .data = job.provider,
                                 .optimizer = *job.optimizer,
                                 .lr_scheduler = scheduler});
    EXPECT_THAT(
        [&] { (void)trainer.train(); },
        ThrowsMessage<StateError>(AllOf(HasSubstr("expected a learning rate >= 0 in step 0"),
                                        HasSubstr("0.5 of the optimiser times"), HasSubstr("of the scheduler"))));
    EXPECT_TRUE(job.descent->steps->empty());
  }
}

TEST(TrainerMistakes, A_schedule_that_is_longer_than_the_run_is_refused_before_a_model_is_built) {
  toy::Job job = small_job();
  job.lr_scheduler = AutoLRSchedulerProvider(PiecewiseConfig{
      .initial_multiplier = 1.0,
      .phases = {StepsPhaseConfig{.steps = 100, .target_multiplier = 0.5, .curve = LinearCurveConfig{}}}});
  EXPECT_THAT([&] { (void)job.make_trainer(); },
              ThrowsMessage<ConfigError>(HasSubstr("expected phases.0 to end within the run")));
  EXPECT_EQ(job.provider.num_models, 0);
}

// Builds an optimiser on copies of the parameters.
struct DetachedProvider : OptimizerProvider {
  Optimizer build_optimizer(const DistContext&, const TrainableParameters& trainable) override {
    std::vector<at::Tensor> copies;
    for (const NamedParameter& parameter : trainable.parameters) {
      copies.push_back(parameter.tensor.detach().clone());
      copies.back().mutable_grad() = at::ones_like(copies.back());
    }
    return Optimizer(toy::Descent{
        .base_learning_rate = 0.5, .parameters = copies, .steps = std::make_shared<std::vector<toy::Descent::Step>>()});
  }
};

TEST(TrainerMistakes, An_optimiser_that_changes_no_parameter_is_said_once) {
  const auto log_of = [](const std::shared_ptr<OptimizerProvider>& optimizer) {
    toy::Job job = small_job();
    if (optimizer != nullptr) job.optimizer = optimizer;
    ::testing::internal::CaptureStderr();
    (void)job.train();
    return ::testing::internal::GetCapturedStderr();
  };
  constexpr const char* kWarning = "the optimiser's first two steps did not change first.bias and 3 more";
  const std::string said = log_of(std::make_shared<DetachedProvider>());
  EXPECT_THAT(said, HasSubstr(kWarning));
  EXPECT_EQ(said.find(kWarning), said.rfind(kWarning));
  EXPECT_THAT(log_of(nullptr), Not(HasSubstr("did not change")));
}

}  // namespace
}  // namespace d9d::trainer_mistakes_test
