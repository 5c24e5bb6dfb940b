// Evaluation of a job on one rank while it trains.
#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <optional>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/blocks/regularization/dropout.h"
#include "d9d/model_state/io/huggingface_directory.h"

#include "tests/loop/run/evaluated_job.h"
#include "tests/support/measured_series.h"

namespace d9d::evaluation_test {
namespace {

namespace fs = std::filesystem;
using evaluated_job::evaluated_packs;
using evaluated_job::Job;
using evaluated_job::kSteps;
using evaluated_job::packs;
using evaluated_job::Task;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

TEST(Evaluation, Is_the_mean_over_all_samples_of_its_set) {
  Job job;
  job.config().at_start = true;
  std::vector<double> expected;
  job.after = [&](const FinishedEvaluation&) { expected.push_back(job.loss()); };
  EXPECT_EQ(job.train(), TrainingOutcome::kFinished);
  EXPECT_THAT(job.steps(), ElementsAre(0, 2, 4));
  for (std::size_t i = 0; i < job.evaluated.size(); ++i) {
    EXPECT_NEAR(job.evaluated[i].values.at("loss"), expected[i], 1e-12) << i;
    EXPECT_EQ(job.evaluated[i].values.at("num_samples"), 10) << i;
    EXPECT_FALSE(job.evaluated[i].is_best) << "without `best`";
  }
  EXPECT_NE(expected[0], expected[1]) << "the model is trained in between";
}

TEST(Evaluation, Has_a_period_a_limit_and_a_last_step) {
  const auto steps_of = [](const EvaluationConfig& config) {
    Job job;
    job.config() = config;
    job.train();
    return job.steps();
  };
  EXPECT_THAT(steps_of({.period_steps = {EverySteps{3}}}), ElementsAre(3, 4));
  EXPECT_THAT(steps_of({.period_steps = {StepActionMode::kLastStep}}), ElementsAre(4));
  EXPECT_THAT(steps_of({.period_steps = {StepActionMode::kDisable}}), IsEmpty());
  EXPECT_THAT(steps_of({.period_steps = {StepActionMode::kDisable}, .at_start = true}), ElementsAre(0));
  Job job;
  job.config().max_packs = 2;
  job.train();
  EXPECT_EQ(job.evaluated.back().values.at("num_samples"), 6);
}

TEST(Evaluation, Writes_series_of_its_own_to_the_last_step) {
  Job job;
  job.config().at_start = true;
  job.train();
  const auto logged = toy::Job::logged();
  ASSERT_EQ(logged.size(), 1 + kSteps);
  EXPECT_EQ(logged[0].at("step"), -1);
  for (const std::size_t line : {0, 2, 4}) {
    EXPECT_EQ(logged[line].at("validation/num_samples"), 10) << line;
    EXPECT_TRUE(logged[line].contains("validation/loss")) << line;
    EXPECT_EQ(logged[line].contains("loss"), line > 0) << line;
  }
  EXPECT_EQ(logged[2].at("num_samples"), 3) << "the metric of training has its own sums";
  EXPECT_FALSE(logged[1].contains("validation/loss"));
}

// Draws random numbers in several ways, and other ones in evaluation.
struct RandomModel : toy::Model {
  RandomModel() { register_module<Dropout>("dropout", 0.5); }
  at::Tensor forward(const at::Tensor& x, const std::monostate& shared) override {
    const auto dropout = std::static_pointer_cast<Dropout>(named_children().back().second);
    if (!is_training()) (void)at::rand({7});
    seen.emplace_back(is_training(), dropout->is_training(), at::GradMode::is_enabled());
    return toy::Model::forward(dropout->forward(x), shared) + 0.01 * at::rand({1}, at::kDouble);
  }
  std::vector<std::tuple<bool, bool, bool>> seen;
};

TEST(Evaluation, Leaves_no_trace_in_training) {
  const auto trained = [](bool evaluates) {
    at::manual_seed(1);
    Job job;
    ModulePtr<RandomModel> model;
    job.job.provider.make_model = [&] {
      model = make_module<RandomModel>();
      return ModulePtr<toy::Model>(model);
    };
    job.config().period_steps =
        evaluates ? StepActionPeriod{EverySteps{1}} : StepActionPeriod{StepActionMode::kDisable};
    job.config().at_start = evaluates;
    Trainer<toy::Types> trainer = job.trainer();
    model->named_children().front().second->eval();  // a part that stays in evaluation mode
    EXPECT_EQ(trainer.train(), TrainingOutcome::kFinished);
    EXPECT_FALSE(model->named_children().front().second->is_training());
    EXPECT_TRUE(model->is_training());
    std::vector<nlohmann::json> lines;
    for (nlohmann::json line : toy::Job::logged()) {
      test::drop_measured(line);
      std::erase_if(line.get_ref<nlohmann::json::object_t&>(),
                    [](const auto& each) { return each.first.starts_with("validation/"); });
      if (line.at("step") >= 0) lines.push_back(line);
    }
    for (const auto& [is_training, dropout_trains, has_gradients] : model->seen) {
      EXPECT_EQ(is_training, has_gradients);
      EXPECT_EQ(dropout_trains, has_gradients);
    }
    EXPECT_EQ(model->seen.size(), kSteps + (evaluates ? 5 * 4 : 0));
    std::map<std::string, at::Tensor> parameters;
    for (const auto& [name, tensor] : model->state_dict()) parameters.emplace(name, tensor.clone());
    return std::pair(lines, parameters);
  };
  const auto [lines, parameters] = trained(true);
  const auto [expected_lines, expected] = trained(false);
  EXPECT_EQ(lines, expected_lines);
  for (const auto& [name, tensor] : expected) EXPECT_TRUE(at::equal(parameters.at(name), tensor)) << name;
}

TEST(Evaluation, May_end_the_job_by_a_handler) {
  Job job;
  job.config().period_steps = {EverySteps{1}};
  double best = std::numeric_limits<double>::infinity();
  job.before = [&](const EvaluationEvent& event) {
    job.task.score = std::vector{2.0, 1.0, 3.0, 0.0}.at(static_cast<std::size_t>(event.schedule.current_step() - 1));
  };
  job.after = [&](const FinishedEvaluation& event) {
    if (event.value("score") > best) event.stop.request("the score grows");
    best = std::min(best, event.value("score"));
    EXPECT_THAT([&] { (void)event.value("scor"); },
                ThrowsMessage<StateError>(
                    AllOf(HasSubstr("'validation' among {loss, num_samples, score}"), HasSubstr("'scor'"))));
  };
  EXPECT_EQ(job.train(), TrainingOutcome::kStopped);
  EXPECT_THAT(job.steps(), ElementsAre(1, 2, 3));
}

TEST(Evaluation, Comes_after_the_step_and_before_its_checkpoint) {
  const fs::path folder = fs::path(::testing::TempDir()) / "d9d_evaluation_order";
  fs::remove_all(folder);
  Job job;
  job.job.config.checkpointing = {.save_dir = folder, .period_steps = {EverySteps{2}}};
  std::vector<std::string> order;
  int num_saved = 0;
  job.before = [&](const EvaluationEvent& event) { order.push_back(cat("before ", event.schedule.current_step())); };
  job.after = [&](const FinishedEvaluation& event) { order.push_back(cat("after ", event.schedule.current_step())); };
  const auto subscribe = job.task.on_events;
  job.task.on_events = [&](EventBus& events) {
    subscribe(events);
    events.subscribe(kTrainStepPost,
                     [&](const FinishedStep& step) { order.push_back(cat("step ", step.schedule.current_step())); });
    events.subscribe(kTrainCheckpointSaved, [&](const CheckpointEvent& saved) {
      EXPECT_THAT(order, Contains(cat("after ", saved.step)));
      ++num_saved;
    });
  };
  job.train();
  EXPECT_THAT(order, ElementsAre("step 0", "step 1", "before 2", "after 2", "step 2", "step 3", "before 4", "after 4"));
  EXPECT_EQ(num_saved, 2);
  fs::remove_all(folder);
}

TEST(Evaluation, Refuses_what_it_cannot_evaluate) {
  Job job;
  job.job.config.evaluation["test"] = {.period_steps = {EverySteps{1}}};
  EXPECT_THAT([&] { job.train(); }, ThrowsMessage<ConfigError>(HasSubstr("trainer.evaluation.test")));
  job.job.config.evaluation = {{"train", {.period_steps = {EverySteps{1}}}}};
  EXPECT_THAT([&] { job.train(); }, ThrowsMessage<ConfigError>(HasSubstr("'train'")));
  Job empty;
  empty.evaluation.packs.clear();
  EXPECT_THAT([&] { empty.train(); },
              ThrowsMessage<StateError>(AllOf(HasSubstr("'validation'"), HasSubstr("got none on any rank"))));

  struct Sharing : Task {
    MetricMap create_metrics() override {
      return {{"num_samples", samples}, {"score", std::make_shared<MeanMetric>()}};
    }
    const std::shared_ptr<SumMetric> samples = std::make_shared<SumMetric>();
  } sharing;
  Job shared;
  const auto trainer = [&] {
    Trainer<toy::Types>(shared.job.context, shared.job.config,
                        {.task = sharing,
                         .model = shared.job.provider,
                         .data = shared.job.provider,
                         .optimizer = *shared.job.optimizer,
                         .lr_scheduler = shared.job.lr_scheduler,
                         .evaluation = {{"validation", &shared.evaluation}}})
        .train();
  };
  EXPECT_THAT(trainer, ThrowsMessage<StateError>(AllOf(HasSubstr("create_metrics"), HasSubstr("'num_samples'"))));
}

TEST(Evaluation, Of_a_set_without_a_period_is_missed) {
  Job job;
  job.job.config.evaluation.clear();
  ::testing::internal::CaptureStderr();
  job.train();
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("trainer.evaluation.validation does not say when"));
  EXPECT_THAT(job.steps(), IsEmpty());
}

// Two losses with weights of their own; the second is NaN where asked, and has no weight where the samples have none.
struct TwoLosses : Task {
  ForwardInputs<toy::Types> build_forward_inputs(const toy::Batch& batch) override {
    auto inputs = Task::build_forward_inputs(batch);
    inputs.loss_weights = {{"a", at::scalar_tensor(2.0, at::kDouble)}, {"b", at::scalar_tensor(weight, at::kDouble)}};
    return inputs;
  }
  LossResult compute_loss(const at::Tensor& output, toy::State& state, const JobSchedule&) override {
    at::Tensor second = output.square().mean();
    if (!at::GradMode::is_enabled()) second = second * factor;
    return {.losses = {{"a", (output - state.batch.y).square().mean()}, {"b", second}}};
  }
  double weight = 1, factor = 1;
};

TEST(Evaluation, Of_several_losses_is_no_number_if_one_with_weight_is_none) {
  for (const auto& [weight, factor] : {std::pair(1.0, 1.0), {1.0, std::nan("")}, {0.0, std::nan("")}}) {
    TwoLosses task;
    task.weight = weight;
    task.factor = factor;
    Job job;
    std::map<std::string, double> values;
    Trainer<toy::Types> trainer = job.trainer_of(task);
    trainer.events().subscribe(kTrainEvaluationPost, [&](const FinishedEvaluation& event) { values = event.values; });
    trainer.train();
    EXPECT_EQ(std::isnan(values.at("loss")), weight > 0 && std::isnan(factor)) << weight << " " << factor;
    EXPECT_EQ(std::isnan(values.at("loss/b")), std::isnan(factor) || weight == 0);
    if (std::isnan(values.at("loss"))) continue;
    EXPECT_DOUBLE_EQ(values.at("loss"), values.at("loss/a") + (weight == 0 ? 0 : values.at("loss/b")));
  }
}

TEST(Evaluation, Goes_on_behind_an_empty_pack) {
  Job job;
  job.evaluation.packs.insert(job.evaluation.packs.begin() + 1, std::vector<toy::Batch>());
  job.train();
  EXPECT_EQ(job.evaluated.back().values.at("num_samples"), 10);
}

TEST(Evaluation, At_the_start_may_ask_to_stop_which_ends_the_job_after_its_first_step) {
  Job job;
  job.config().at_start = true;
  job.before = [](const EvaluationEvent& event) { event.stop.request("a try"); };
  Trainer<toy::Types> trainer = job.trainer();
  EXPECT_EQ(trainer.train(), TrainingOutcome::kStopped);
  EXPECT_EQ(trainer.schedule().current_step(), 1);
}

TEST(Evaluation, Refuses_a_negative_weight) {
  TwoLosses task;
  Job job;
  Trainer<toy::Types> trainer = job.trainer_of(task);
  trainer.events().subscribe(kTrainEvaluationPre, [&](const EvaluationEvent&) { task.weight = -1; });
  EXPECT_THAT([&] { (void)trainer.train(); },
              ThrowsMessage<StateError>(AllOf(HasSubstr("loop::evaluation"), HasSubstr("negative"))));
}

TEST(Evaluation, Names_the_microbatch_of_an_error) {
  struct Failing : Task {
    LossResult compute_loss(const at::Tensor& output, toy::State& state, const JobSchedule& schedule) override {
      D9D_CHECK(state.batch.x.size(0) != 4, UsageError, "[toy] expected less.");
      return Task::compute_loss(output, state, schedule);
    }
  } failing;
  Job job;
  Trainer<toy::Types> trainer(job.job.context, job.job.config,
                              {.task = failing,
                               .model = job.job.provider,
                               .data = job.job.provider,
                               .optimizer = *job.job.optimizer,
                               .lr_scheduler = job.job.lr_scheduler,
                               .evaluation = {{"validation", &job.evaluation}}});
  EXPECT_THAT([&] { (void)trainer.train(); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("in compute_loss"),
                                              HasSubstr("microbatch 0 of pack 2 of the evaluation set 'validation'"))));
}

}  // namespace
}  // namespace d9d::evaluation_test
