// Averages of the weights of a job: of the steps that changed the model, in evaluations, exports and checkpoints, and
// without a trace in training.
#include <cmath>
#include <filesystem>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/checkpoint/checkpoint_directory.h"
#include "d9d/model_state/io/huggingface_directory.h"
#include "d9d/model_state/mapped_sources.h"
#include "d9d/peft/inject.h"
#include "d9d/peft/merge.h"

#include "tests/loop/run/evaluated_job.h"
#include "tests/loop/run/pipeline_job.h"
#include "tests/support/turns.h"

namespace d9d::averaged_weights_test {
namespace {

namespace fs = std::filesystem;
namespace pipeline = test::pipeline;
using evaluated_job::evaluated_packs;
using evaluated_job::kSteps;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

constexpr double kDecay = 0.7;
constexpr double kRounding = 1e-13;  // of fp64, in some hundred operations
using Values = std::map<std::string, at::Tensor>;

Values values_of(const NamedTensors& tensors) {
  Values values;
  for (const std::string& name : tensors.names) values.emplace(name, tensors.find(name)->read().clone());
  return values;
}
Values exported_to(const fs::path& folder) { return values_of(tensors_of(HuggingFaceDirectory(folder))); }
Values saved_in(const fs::path& folder) { return values_of(checkpoint_at(folder).value().tensors("ema.")); }
Values copy_of(const Module& module) {
  Values values;
  for (const auto& [name, parameter] : module.named_parameters()) {
    values.emplace(name, parameter->stored().detach().clone());
  }
  return values;
}
void expect_near(const Values& actual, const Values& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (const auto& [name, tensor] : expected) EXPECT_TRUE(at::allclose(actual.at(name), tensor, 0, kRounding)) << name;
}
void expect_equal(const Values& actual, const Values& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (const auto& [name, tensor] : expected) EXPECT_TRUE(at::equal(actual.at(name), tensor)) << name;
}

// Of evaluated_job.h, with weights of the test.
double loss_of(const Values& values) {
  double sum = 0, weight = 0;
  for (const auto& pack : evaluated_packs()) {
    for (const toy::Batch& batch : pack) {
      const at::Tensor hidden = at::tanh(at::linear(batch.x, values.at("first.weight"), values.at("first.bias")));
      const at::Tensor output = at::linear(hidden, values.at("second.weight"), values.at("second.bias"));
      sum += ((output - batch.y).square() * batch.weights).sum().item<double>();
      weight += batch.weights.sum().item<double>();
    }
  }
  return sum / weight;
}

// A job that computes its averages by hand, too.
struct Job : evaluated_job::Job {
  explicit Job(EvaluatedWeights evaluate = EvaluatedWeights::kAveraged) {
    job.optimizer = std::make_shared<AutoOptimizerProvider>(AdamWConfig{.lr = 0.05});  // scales gradients
    job.config.ema = AveragedWeightsConfig{.average = {.decay = kDecay}, .evaluate = evaluate};
    config().period_steps = {EverySteps{1}};
    const auto subscribe = task.on_events;
    task.on_events = [this, subscribe](EventBus& events) {
      subscribe(events);
      events.subscribe(kTrainReady, [this](const auto&) {
        if (expected.empty()) expected = copy_of(*job.provider.model);
      });
      events.subscribe(kTrainStepPost, [this](const FinishedStep& step) {
        if (!step.is_updated) return;
        trained = copy_of(*job.provider.model);
        for (auto& [name, average] : expected) average = kDecay * average + (1 - kDecay) * trained.at(name);
      });
    };
  }
  void save(const fs::path& folder) {
    job.config.checkpointing = {.save_dir = folder, .period_steps = {EverySteps{2}}};
  }

  Values trained;   // after the last step
  Values expected;  // averages
};

class AveragedWeights : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::remove_all(folder());
    fs::create_directories(folder());
  }
  void TearDown() override { fs::remove_all(folder()); }

  static fs::path folder() {
    const auto* const test = ::testing::UnitTest::GetInstance()->current_test_info();
    return fs::path(::testing::TempDir()) / cat("d9d_averaged_", test->name());
  }
};

TEST_F(AveragedWeights, Are_evaluated_in_place_of_the_trained_ones_or_beside_them) {
  for (const EvaluatedWeights evaluate :
       {EvaluatedWeights::kAveraged, EvaluatedWeights::kTrained, EvaluatedWeights::kBoth}) {
    Job job(evaluate);
    int num_evaluated = 0;
    job.after = [&](const FinishedEvaluation& event) {
      const double averaged = loss_of(job.expected), trained = loss_of(job.trained);
      EXPECT_GT(std::abs(averaged - trained), 1e-6);
      EXPECT_NEAR(event.value("loss"), evaluate == EvaluatedWeights::kAveraged ? averaged : trained, kRounding);
      EXPECT_EQ(event.value("num_samples"), 10);
      EXPECT_EQ(event.values.contains("ema/loss"), evaluate == EvaluatedWeights::kBoth);
      if (evaluate == EvaluatedWeights::kBoth) {
        EXPECT_NEAR(event.value("ema/loss"), averaged, kRounding);
        EXPECT_EQ(event.value("ema/num_samples"), 10);
      }
      ++num_evaluated;
    };
    job.train();
    EXPECT_EQ(num_evaluated, kSteps);
    EXPECT_EQ(toy::Job::logged().back().contains("validation/ema/loss"), evaluate == EvaluatedWeights::kBoth);
  }
}

TEST_F(AveragedWeights, Can_decide_which_model_is_best) {
  Job job(EvaluatedWeights::kBoth);
  job.config().best = BestConfig{.metric = "ema/loss", .export_to = folder() / "best"};
  Values best;
  double best_loss = std::numeric_limits<double>::infinity();
  job.after = [&](const FinishedEvaluation& event) {
    EXPECT_EQ(event.is_best, event.value("ema/loss") < best_loss);
    if (!event.is_best) return;
    best_loss = event.value("ema/loss");
    best = job.expected;
  };
  job.train();
  expect_near(exported_to(folder() / "best"), best);
  Job alone;
  alone.config().best = BestConfig{.metric = "ema/loss", .export_to = folder() / "best"};
  EXPECT_THAT([&] { alone.train(); }, ThrowsMessage<ConfigError>(HasSubstr("{loss, num_samples, score}")));
}

TEST_F(AveragedWeights, Are_not_compared_with_the_best_of_trained_ones) {
  const auto train = [](EvaluatedWeights evaluate, double score) {
    Job job(evaluate);
    job.save(folder());
    job.config().best = BestConfig{.metric = "score"};
    job.task.score = score;
    job.train();
    return job.evaluated;
  };
  EXPECT_TRUE(train(EvaluatedWeights::kTrained, 1.0).front().is_best);
  for (const int step : {3, 4}) fs::remove_all(folder() / cat("save-", step));
  const auto rest = train(EvaluatedWeights::kAveraged, 2.0);
  EXPECT_EQ(rest.front().step, 3);
  EXPECT_TRUE(rest.front().is_best);
  fs::remove_all(folder() / "save-4");
  EXPECT_FALSE(train(EvaluatedWeights::kAveraged, 2.0).front().is_best);
}

TEST_F(AveragedWeights, Leave_no_trace_in_training) {
  const auto trained = [](bool averages) {
    Job job(EvaluatedWeights::kBoth);
    if (!averages) {
      job.job.config.ema.reset();
      job.config().period_steps = {StepActionMode::kDisable};
    }
    job.train();
    return copy_of(*job.job.provider.model);
  };
  expect_equal(trained(true), trained(false));
}

struct FailingInEvaluation : evaluated_job::Task {
  LossResult compute_loss(const at::Tensor& output, toy::State& state, const JobSchedule& schedule) override {
    D9D_CHECK(at::GradMode::is_enabled() || schedule.current_step() < 2, UsageError, "[test] the evaluation fails.");
    return evaluated_job::Task::compute_loss(output, state, schedule);
  }
};

TEST_F(AveragedWeights, Go_when_an_evaluation_fails) {
  Job job;
  FailingInEvaluation task;
  task.on_events = job.task.on_events;
  auto trainer = job.trainer_of(task);
  EXPECT_THAT([&] { trainer.train(); }, ThrowsMessage<UsageError>(HasSubstr("the evaluation fails")));
  expect_equal(copy_of(*job.job.provider.model), job.trained);
  trainer.export_to(folder() / "exported");
  expect_near(exported_to(folder() / "exported"), job.expected);
}

TEST_F(AveragedWeights, Do_not_follow_a_step_that_changed_nothing) {
  for (const bool is_spike : {false, true}) {
    Job job;
    job.job.provider.packs[2][0].y.fill_(is_spike ? 1e6 : std::numeric_limits<double>::quiet_NaN());
    job.job.config.gradient_clipping.on_non_finite = NonFinitePolicy::kSkip;
    if (is_spike) job.job.config.gradient_clipping.spikes = SpikeConfig{.num_deviations = 100, .window_steps = 4};
    auto trainer = job.trainer();
    trainer.train();
    EXPECT_EQ(toy::Job::logged().back().at("skipped_steps"), 1);
    trainer.export_to(folder() / "exported");
    expect_near(exported_to(folder() / "exported"), job.expected);
  }
}

TEST_F(AveragedWeights, Are_exported_by_choice) {
  for (const ExportedWeights exported : {ExportedWeights::kAveraged, ExportedWeights::kTrained}) {
    const bool is_averaged = exported == ExportedWeights::kAveraged;
    Job job;
    job.job.config.ema->exported = exported;
    job.job.config.exports = ExportsConfig{.folder = folder() / "exports", .period_steps = {EverySteps{2}}};
    Values at_step_2;
    job.after = [&](const FinishedEvaluation& event) {
      if (event.schedule.current_step() == 2) at_step_2 = is_averaged ? job.expected : job.trained;
    };
    auto trainer = job.trainer();
    trainer.train();
    trainer.export_to(folder() / "exported");
    expect_near(exported_to(folder() / "exports" / "step-2"), at_step_2);
    expect_near(exported_to(folder() / "exported"), is_averaged ? job.expected : job.trained);
    expect_equal(copy_of(*job.job.provider.model), job.trained);
  }
}

TEST_F(AveragedWeights, Of_adapters_that_are_merged_are_not_exported) {
  for (const ExportedWeights exported : {ExportedWeights::kAveraged, ExportedWeights::kTrained}) {
    Job job;
    job.job.config.ema->exported = exported;
    job.job.provider.make_model = [] {
      auto model = make_module<toy::Model>();
      (void)inject_peft(LoraConfig{.module_name_pattern = "first", .params = {.r = 2, .alpha = 4}}, *model);
      return model;
    };
    auto trainer = job.trainer();
    trainer.train();
    const MergedPeft merged = merge_peft(*job.job.provider.model);
    const auto export_it = [&] { trainer.export_to(folder() / "exported"); };
    if (exported == ExportedWeights::kAveraged) {
      EXPECT_THAT(export_it, ThrowsMessage<StateError>(HasSubstr("trainer.ema.export = \"trained\"")));
    } else {
      export_it();
      expect_equal(exported_to(folder() / "exported"), copy_of(*job.job.provider.model));
    }
  }
}

TEST_F(AveragedWeights, Of_trained_parameters_alone) {
  Job job;
  job.job.provider.make_model = [] {
    auto model = make_module<toy::Model>();
    model->first->named_parameters().front().second->set_requires_grad(false);
    return model;
  };
  job.save(folder() / "saves");
  auto trainer = job.trainer();
  trainer.train();
  trainer.export_to(folder() / "exported");
  const Values saved = saved_in(folder() / "saves");
  EXPECT_EQ(saved.size(), 1 + job.expected.size() - 1) << "a count, and no average of what is frozen";
  EXPECT_FALSE(saved.contains("first.weight.average"));
  expect_near(exported_to(folder() / "exported"), job.expected);
}

TEST_F(AveragedWeights, Are_saved_and_go_on) {
  Job whole;
  whole.save(folder());
  whole.train();
  const Values expected = saved_in(folder() / "save-4");
  EXPECT_EQ(expected.at("num_updates").item<std::int64_t>(), kSteps);
  fs::remove_all(folder() / "save-4");
  Job rest;
  rest.save(folder());
  rest.train();
  expect_equal(saved_in(folder() / "save-4"), expected);
}

TEST_F(AveragedWeights, Of_a_checkpoint_without_them_begin_as_its_weights) {
  Job without;
  without.job.config.ema.reset();
  without.save(folder());
  without.train();
  fs::remove_all(folder() / "save-4");
  Job job;  // takes its own copy when it is ready, which is when the checkpoint is loaded
  job.save(folder());
  ::testing::internal::CaptureStderr();
  auto trainer = job.trainer();
  trainer.train();
  EXPECT_THAT(
      ::testing::internal::GetCapturedStderr(),
      AllOf(HasSubstr("save-2 has no averages of the weights: they begin as its weights"), Not(HasSubstr("end here"))));
  trainer.export_to(folder() / "exported");
  expect_near(exported_to(folder() / "exported"), job.expected);
  EXPECT_EQ(saved_in(folder() / "save-4").at("num_updates").item<std::int64_t>(), 2);
}

TEST_F(AveragedWeights, Of_a_checkpoint_end_with_a_warning_if_the_job_has_none) {
  Job with;
  with.save(folder());
  with.train();
  fs::remove_all(folder() / "save-4");
  Job job;
  job.job.config.ema.reset();
  job.save(folder());
  ::testing::internal::CaptureStderr();
  job.train();
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("save-2 end here"));
  EXPECT_TRUE(saved_in(folder() / "save-4").empty());
}

// On ranks ----------------------------------------------------------------------------------------------------------

using pipeline::PipelineJob;

// Evaluates trained weights and averages after each step, and saves after the last.
PipelineJob averaging(PipelineJob job) {
  job.ema = AveragedWeightsConfig{.average = {.decay = kDecay, .warmup = true}, .evaluate = EvaluatedWeights::kBoth};
  job.evaluated = {5, 1, 3};
  return job;
}

class AveragedPipelines : public ::testing::Test {
 protected:
  void SetUp() override { fs::remove_all(pipeline::folder()); }
  void TearDown() override { fs::remove_all(pipeline::folder()); }

  struct Averaged {
    pipeline::Trained trained;
    Values averages;
  };
  static Averaged train(PipelineJob job) {
    job.save_dir = "saved";
    job.save_period = job.num_steps;
    fs::remove_all(pipeline::folder() / job.save_dir);
    pipeline::Trained trained = pipeline::train(averaging(job));
    return {.trained = std::move(trained), .averages = saved_in(pipeline::folder() / job.save_dir)};
  }
  static void expect_same(const Averaged& actual, const Averaged& expected) {
    pipeline::expect_same(actual.trained, expected.trained);
    ASSERT_EQ(actual.averages.size(), expected.averages.size());
    for (const auto& [name, tensor] : expected.averages) {
      ASSERT_TRUE(actual.averages.contains(name)) << name;
      const double error = (actual.averages.at(name) - tensor).to(at::kDouble).abs().max().item<double>();
      EXPECT_LE(error, test::tolerance("fp64").value) << name;
    }
  }
};

TEST_F(AveragedPipelines, Have_the_averages_and_losses_of_one_rank_and_train_bit_for_bit_as_without) {
  const FsdpConfig kept{.reshard_after_forward = ReshardAfterForward::kNever, .reduce_on_last_microbatch = true};
  const std::vector<PipelineJob> dense = {
      {.mesh = {.data_parallel_shard = 2}},
      {.mesh = {.data_parallel_replicate = 2}},
      {.mesh = {.context_parallel_shard = 2}},
      {.mesh = {.pipeline_parallel = 2}, .schedule = ZeroBubbleVScheduleConfig{}},
      {.mesh = {.pipeline_parallel = 2, .tensor_parallel = 2}, .schedule = OneFOneBScheduleConfig{}},
      {.mesh = {.pipeline_parallel = 2, .data_parallel_shard = 2},
       .schedule = DualPipeVScheduleConfig{},
       .fsdp = kept}};
  const std::vector<PipelineJob> experts = {{.mesh = {.data_parallel_shard = 2, .expert_parallel = 2}}};
  test::Turns turns(3);
  for (const bool has_experts : {false, true}) {
    for (const bool ties : {false, true}) {
      if (has_experts && ties) continue;
      const Averaged expected = train({.has_experts = has_experts, .ties_embeddings = ties});
      for (PipelineJob job : has_experts ? experts : dense) {
        if (!turns.has_next()) continue;
        job.has_experts = has_experts;
        job.ties_embeddings = ties;
        SCOPED_TRACE(cat(write_record(job.mesh).dump(), ties ? " tied" : ""));
        const Averaged actual = train(job);
        expect_same(actual, expected);
        fs::remove_all(pipeline::folder() / "saved");
        pipeline::expect_equal(pipeline::without_evaluation(actual.trained), pipeline::train(job));
      }
    }
  }
}

TEST_F(AveragedPipelines, Evaluate_float32_averages_of_bfloat16_layers_with_masters) {
  PipelineJob job{.model = {.master_dtype = Dtype::kFloat32}, .dtype = at::kBFloat16};
  for (const DeviceMeshParameters& mesh : {DeviceMeshParameters{}, DeviceMeshParameters{.data_parallel_shard = 2}}) {
    job.mesh = mesh;
    const Averaged actual = train(job);
    for (const auto& [name, tensor] : actual.averages) {
      EXPECT_EQ(tensor.scalar_type(), name == "num_updates" ? at::kLong : at::kFloat);
    }
    EXPECT_NE(pipeline::series_of(actual.trained).at("validation/ema/loss").back(),
              pipeline::series_of(actual.trained).at("validation/loss").back());
    fs::remove_all(pipeline::folder() / "saved");
    pipeline::expect_equal(pipeline::without_evaluation(actual.trained), pipeline::train(job));
  }
}

// What layers compute with is a copy of the weights there.
TEST_F(AveragedPipelines, Leave_layers_the_trained_weights) {
  PipelineJob job{.model = {.master_dtype = Dtype::kFloat32},
                  .dtype = at::kBFloat16,
                  .optimizer = AdamWConfig{.lr = 0.3},  // so that each step changes what is written
                  .prompt = {1, 2, 3}};
  for (const DeviceMeshParameters& mesh :
       {DeviceMeshParameters{}, DeviceMeshParameters{.data_parallel_replicate = 2},
        DeviceMeshParameters{.pipeline_parallel = 2}, DeviceMeshParameters{.data_parallel_shard = 2}}) {
    SCOPED_TRACE(write_record(mesh).dump());
    job.mesh = mesh;
    job.on_trained = nullptr;
    const pipeline::Trained without = pipeline::train(job);
    job.on_trained = [](const Module& module) {
      for (const auto& [name, parameter] : module.named_parameters()) {
        if (has_flat_shard(parameter->placements())) continue;
        EXPECT_TRUE(at::equal(parameter->local(), parameter->stored().to(at::kBFloat16))) << name;
      }
    };
    EXPECT_EQ(train(job).trained.written, without.written);
  }
}

TEST_F(AveragedPipelines, Go_on_from_a_checkpoint_on_another_mesh) {
  constexpr std::int64_t kAll = 5;
  const Averaged expected = train({.num_steps = kAll});
  PipelineJob job =
      averaging({.mesh = {.data_parallel_shard = 4}, .num_steps = kAll, .save_dir = "saved", .save_period = 3});
  fs::remove_all(pipeline::folder() / "saved");
  (void)pipeline::train(job);
  fs::remove_all(pipeline::folder() / "saved" / cat("save-", kAll));
  job.mesh = {.pipeline_parallel = 2, .data_parallel_replicate = 2};
  job.schedule = ZeroBubbleVScheduleConfig{};
  const auto rest = pipeline::train(job);
  EXPECT_EQ(rest.logged.size(), static_cast<std::size_t>(kAll - 3));
  Averaged actual{.trained = expected.trained, .averages = saved_in(pipeline::folder() / "saved")};
  expect_same(actual, expected);
  EXPECT_NEAR(pipeline::series_of(rest).at("validation/ema/loss").back(),
              pipeline::series_of(expected.trained).at("validation/ema/loss").back(),
              test::tolerance("fp64").value * 10);
}

TEST_F(AveragedPipelines, Sleep_without_a_trace) {
  PipelineJob job{.mesh = {.pipeline_parallel = 2, .data_parallel_shard = 2}, .schedule = DualPipeVScheduleConfig{}};
  const Averaged awake = train(job);
  job.sleeps = {SleepTag::kTensorStates, SleepTag::kComms};
  const Averaged slept = train(job);
  pipeline::expect_equal(slept.trained, awake.trained);
  expect_equal(slept.averages, awake.averages);
}

}  // namespace
}  // namespace d9d::averaged_weights_test
