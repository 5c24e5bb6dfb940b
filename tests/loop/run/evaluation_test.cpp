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

#include "tests/loop/run/toy_job.h"
#include "tests/support/measured_series.h"

namespace d9d::evaluation_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

constexpr std::int64_t kSteps = 4;

std::vector<std::vector<toy::Batch>> packs() {
  std::vector<std::vector<toy::Batch>> packs;
  for (std::int64_t step = 0; step < kSteps; ++step) packs.push_back({toy::samples(3 * step, 3)});
  return packs;
}

// Three packs of microbatches of different sizes and weights.
std::vector<std::vector<toy::Batch>> evaluated_packs() {
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

class BestEvaluation : public ::testing::Test {
 protected:
  void SetUp() override { fs::remove_all(folder()); }
  void TearDown() override { fs::remove_all(folder()); }

  static fs::path folder() {
    const auto* const test = ::testing::UnitTest::GetInstance()->current_test_info();
    return fs::path(::testing::TempDir()) / cat("d9d_best_", test->name());
  }
  static std::vector<std::string> checkpoints() {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder())) {
      if (entry.is_directory() && entry.path().filename().string().starts_with("save-")) {
        names.push_back(entry.path().filename());
      }
    }
    std::ranges::sort(names);
    return names;
  }
  // Evaluates after each step, with these scores one after the other.
  static void score(Job& job, std::vector<double> scores, std::int64_t num_before = 0) {
    job.config() = {.period_steps = {EverySteps{1}}, .best = BestConfig{.metric = "score", .mode = BestMode::kMax}};
    job.before = [&job, scores = std::move(scores), num_before](const EvaluationEvent& event) {
      job.task.score = scores.at(static_cast<std::size_t>(event.schedule.current_step() - 1 - num_before));
    };
    job.job.config.checkpointing.save_dir = folder();
    job.job.config.checkpointing.num_to_keep = 1;
  }
};

TEST_F(BestEvaluation, Is_saved_and_kept_until_a_better_one_comes) {
  Job job;
  score(job, {1, 3, 2, std::numeric_limits<double>::quiet_NaN()});
  job.job.config.checkpointing.period_steps = {EverySteps{3}};
  std::vector<std::string> before_third;
  job.after = [&](const FinishedEvaluation& event) {
    if (event.schedule.current_step() == 3) before_third = checkpoints();
  };
  job.train();
  std::vector<bool> are_best;
  for (const Evaluated& each : job.evaluated) are_best.push_back(each.is_best);
  EXPECT_THAT(are_best, ElementsAre(true, true, false, false));
  EXPECT_THAT(checkpoints(), ElementsAre("save-2", "save-4"));
}

TEST_F(BestEvaluation, Of_a_resumed_job_is_compared_with_those_before) {
  for (const bool are_better : {false, true}) {
    fs::remove_all(folder());
    Job first;
    score(first, {3, 1});
    first.job.config.schedule.total_steps = 2;
    first.job.config.checkpointing.period_steps = {EverySteps{1}};
    first.train();
    EXPECT_THAT(checkpoints(), ElementsAre("save-1", "save-2"));
    Job second;
    score(second, {are_better ? 4.0 : 2.0, 1}, /*num_before=*/2);
    second.job.config.checkpointing.period_steps = {EverySteps{1}};
    second.train();
    EXPECT_THAT(second.steps(), ElementsAre(3, 4)) << "the evaluation of step 2 is not repeated";
    EXPECT_EQ(second.evaluated.front().is_best, are_better);
    EXPECT_THAT(checkpoints(), ElementsAre(are_better ? "save-3" : "save-1", "save-4"));
  }
}

TEST_F(BestEvaluation, Stays_until_a_better_one_is_on_disk) {
  Job job;
  score(job, {1, 3, 2, 2});
  job.job.config.checkpointing.period_steps = {EverySteps{1}};
  job.job.config.checkpointing.on_failed_save = FailedSavePolicy::kContinue;
  job.after = [&](const FinishedEvaluation& event) {  // in the way of the save of the better one
    if (event.schedule.current_step() == 2) fs::create_directory(folder() / "save-2");
  };
  job.train();
  EXPECT_THAT(checkpoints(), ElementsAre("save-1", "save-2", "save-4"));
  EXPECT_FALSE(fs::exists(folder() / "save-2" / "manifest.json"));
}

// Asks to stop at the second evaluation that is worse than the one before it.
struct Patience {
  void after_evaluation(const FinishedEvaluation& evaluation) {
    num_worse += evaluation.is_best ? 0 : 1;
    if (num_worse == 2) evaluation.stop.request("two were worse");
  }
  static constexpr auto handlers() { return std::tuple(on(kTrainEvaluationPost, &Patience::after_evaluation)); }
  nlohmann::json state() const { return num_worse; }
  void load_state(const nlohmann::json& state) { num_worse = state; }
  int num_worse = 0;
};

TEST_F(BestEvaluation, Is_waited_for_by_a_handler_whose_state_is_saved) {
  for (const bool is_second : {false, true}) {
    Job job;
    score(job, {3, 2, 1, 0});
    job.job.config.checkpointing.period_steps = {EverySteps{1}};
    if (!is_second) job.job.config.schedule.total_steps = 2;
    Patience patience;
    Trainer<toy::Types> trainer = job.trainer();
    trainer.events().attach("patience", patience);
    EXPECT_EQ(patience.num_worse, is_second ? 1 : 0) << "attached when the checkpoint was loaded";
    EXPECT_EQ(trainer.train(), is_second ? TrainingOutcome::kStopped : TrainingOutcome::kFinished);
    EXPECT_EQ(job.steps(), is_second ? std::vector<std::int64_t>{3} : (std::vector<std::int64_t>{1, 2}));
  }
}

TEST_F(BestEvaluation, Is_exported_if_that_is_configured) {
  Job job;
  score(job, {1, 3, 2, 1});
  job.config().best->export_to = folder() / "best";
  job.job.config.checkpointing.period_steps = {StepActionMode::kDisable};
  at::Tensor best;
  job.after = [&](const FinishedEvaluation& event) {
    if (event.is_best) best = job.job.provider.model->first->weight->stored().detach().clone();
  };
  job.train();
  const HuggingFaceDirectory exported(folder() / "best");
  EXPECT_TRUE(at::equal(exported.find("first.weight")->read(), best));
  EXPECT_FALSE(fs::exists(folder() / "save-4")) << "a job that does not save";
}

TEST_F(BestEvaluation, Needs_a_known_metric_and_a_place) {
  Job job;
  score(job, {1, 1, 1, 1});
  job.job.config.checkpointing.period_steps = {StepActionMode::kDisable};
  EXPECT_THAT([&] { job.train(); }, ThrowsMessage<ConfigError>(AllOf(HasSubstr("trainer.evaluation.validation.best"),
                                                                     HasSubstr("export_to"))));
  job.config().best->export_to = folder() / "best";
  job.config().best->metric = "scores";
  EXPECT_THAT([&] { job.train(); }, ThrowsMessage<ConfigError>(AllOf(HasSubstr("'scores'"), HasSubstr("num_samples"))));
}

TEST_F(BestEvaluation, Is_kept_by_a_start_that_does_not_look_for_it) {
  const auto train = [](std::vector<double> scores, std::int64_t total, std::int64_t num_before, bool looks) {
    Job job;
    score(job, std::move(scores), num_before);
    job.job.config.checkpointing.period_steps = {EverySteps{1}};
    job.job.config.schedule.total_steps = total;
    if (!looks) job.config().best.reset();
    job.train();
    return job.evaluated;
  };
  (void)train({9}, 1, 0, true);
  (void)train({5, 5}, 3, 1, false);
  EXPECT_THAT(checkpoints(), ElementsAre("save-1", "save-3"));
  EXPECT_FALSE(train({8}, 4, 3, true).back().is_best);
}

TEST_F(BestEvaluation, Needs_a_place_for_exports_that_is_free) {
  fs::create_directories(folder() / "best");
  std::ofstream(folder() / "best" / "notes.txt") << "of somebody else";
  Job job;
  score(job, {1, 1, 1, 1});
  job.config().best->export_to = folder();
  job.job.config.checkpointing.period_steps = {EverySteps{1}};
  EXPECT_THAT([&] { job.train(); },
              ThrowsMessage<ConfigError>(HasSubstr("trainer.evaluation.validation.best.export_to")));
  EXPECT_THAT(job.steps(), IsEmpty()) << "refused before a step";
}

TEST_F(BestEvaluation, Of_the_last_step_that_a_signal_ended_is_made_once_at_the_next_start) {
  for (int start = 0; start < 3; ++start) {
    Job job;
    score(job, {1, 2, 3, 4});
    job.config().best->export_to = folder() / "best";
    job.job.config.checkpointing.period_steps = {EverySteps{4}};
    const auto ask = job.before;
    job.before = [&](const EvaluationEvent& event) {
      ask(event);
      if (start == 0 && event.schedule.current_step() == 4) std::raise(SIGTERM);
    };
    EXPECT_EQ(job.train(), start == 0 ? TrainingOutcome::kInterrupted : TrainingOutcome::kFinished) << start;
    EXPECT_EQ(job.steps(), start == 0   ? (std::vector<std::int64_t>{1, 2, 3})
                           : start == 1 ? std::vector<std::int64_t>{4}
                                        : std::vector<std::int64_t>{});
  }
}

TEST_F(BestEvaluation, Of_a_job_that_a_signal_ended_is_made_when_it_resumes) {
  Job job;
  score(job, {1, 2, 3, 4});
  job.job.config.checkpointing.period_steps = {EverySteps{4}};
  const auto ask = job.before;
  job.before = [&](const EvaluationEvent& event) {
    ask(event);
    if (event.schedule.current_step() == 2) std::raise(SIGTERM);
  };
  EXPECT_EQ(job.train(), TrainingOutcome::kInterrupted);
  EXPECT_THAT(job.steps(), ElementsAre(1));
  EXPECT_THAT(checkpoints(), ElementsAre("save-1", "save-2")) << "no finished step is lost";
  Job again;
  score(again, {1, 2, 3, 4});
  again.job.config.checkpointing.period_steps = {EverySteps{4}};
  EXPECT_EQ(again.train(), TrainingOutcome::kFinished);
  EXPECT_THAT(again.steps(), ElementsAre(2, 3, 4));
}

TEST(Evaluation, May_end_the_job_by_a_handler) {
  Job job;
  job.config().period_steps = {EverySteps{1}};
  double best = std::numeric_limits<double>::infinity();
  job.before = [&](const EvaluationEvent& event) {
    job.task.score = std::vector{2.0, 1.0, 3.0, 0.0}.at(static_cast<std::size_t>(event.schedule.current_step() - 1));
  };
  job.after = [&](const FinishedEvaluation& event) {
    if (event.values.at("score") > best) event.stop.request("the score grows");
    best = std::min(best, event.values.at("score"));
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
