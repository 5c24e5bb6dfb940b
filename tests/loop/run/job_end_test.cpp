// How a job ends if no step changed the model, or if the last save failed.
#include <cmath>
#include <filesystem>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/peft/inject.h"

#include "tests/loop/run/logged_job.h"
#include "tests/support/io_faults.h"

namespace d9d::job_end_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

constexpr std::int64_t kSteps = 3;

std::vector<std::vector<toy::Batch>> packs() {
  std::vector<std::vector<toy::Batch>> packs;
  for (std::int64_t step = 0; step < kSteps; ++step) packs.push_back({toy::samples(2 * step, 2)});
  return packs;
}

// Packs whose samples have the weight 0, except in `step`.
std::vector<std::vector<toy::Batch>> weightless_packs(std::int64_t step = -1) {
  auto all = packs();
  for (std::int64_t i = 0; i < kSteps; ++i) {
    if (i != step) all[static_cast<std::size_t>(i)].front().weights.zero_();
  }
  return all;
}

class JobEnd : public ::testing::Test {
 protected:
  void SetUp() override { fs::remove_all(folder_); }
  void TearDown() override { fs::remove_all(folder_); }

  const fs::path folder_ =
      fs::path(::testing::TempDir()) / cat("d9d_end_", ::testing::UnitTest::GetInstance()->current_test_info()->name());
};

TEST_F(JobEnd, Of_a_job_in_which_no_step_changed_anything_is_an_error) {
  toy::Job job(weightless_packs());
  EXPECT_THAT([&] { (void)job.train(); },
              ThrowsMessage<StateError>(AllOf(HasSubstr("expected a step that changes the model, got none in 3 steps"),
                                              HasSubstr("its total loss weight is 0. Nothing is exported."))));
  toy::Job not_finite(packs());
  not_finite.config.gradient_clipping.on_non_finite = NonFinitePolicy::kSkip;
  not_finite.provider.packs.front().front().y.fill_(std::numeric_limits<double>::infinity());
  EXPECT_EQ(not_finite.train(), TrainingOutcome::kFinished);  // the other steps change it
  for (auto& pack : not_finite.provider.packs) pack.front().y.fill_(std::numeric_limits<double>::infinity());
  EXPECT_THAT([&] { (void)not_finite.train(); }, ThrowsMessage<StateError>(HasSubstr("got none in 3 steps: loss inf")));
}

// A learning rate of 0 is allowed: it shows the losses of given weights.
TEST_F(JobEnd, Of_a_job_whose_learning_rate_was_always_0_says_so) {
  const auto said = [](double rate) {
    return toy::log_of(
        [&](toy::Job& job) { job.optimizer = std::make_shared<AutoOptimizerProvider>(AdamWConfig{.lr = rate}); });
  };
  EXPECT_THAT(said(0.0), HasSubstr("the learning rate was 0 in every step: the model is as it began"));
  EXPECT_THAT(said(0.1), Not(HasSubstr("was 0 in every step")));
}

// If a parameter itself is not finite, all later steps would be skipped too.
TEST_F(JobEnd, Of_a_job_that_skips_steps_comes_with_a_parameter_that_is_not_finite) {
  struct : toy::Task {
    void register_events(const DistContext&, EventBus& events) override {
      events.subscribe(kTrainModelStagesReady,
                       [this](const ModelStagesReady& ready) { module = &ready.modules[0].get(); });
      events.subscribe(kTrainStepPre, [this](const TrainStep& step) {
        const auto [name, parameter] = module->named_parameters().front();
        if (step.schedule.current_step() == 1)
          parameter->local().detach().fill_(std::numeric_limits<double>::quiet_NaN());
      });
    }
    Module* module = nullptr;
  } task;
  toy::Job job(packs());
  job.config.gradient_clipping.on_non_finite = NonFinitePolicy::kSkip;
  EXPECT_THAT([&] { (void)job.make_trainer(job.context, task).train(); },
              ThrowsMessage<StateError>(AllOf(HasSubstr("in step 1, got loss nan"), HasSubstr("itself has such values"),
                                              Not(HasSubstr("leaves such steps out")))));
}

TEST_F(JobEnd, Of_such_a_job_stays_an_error_when_it_is_started_again) {
  toy::Job job(weightless_packs());
  job.config.checkpointing = {.save_dir = folder_, .period_steps = {EverySteps{2}}};
  for (int start = 0; start < 2; ++start) {
    EXPECT_THAT([&] { (void)job.train(); }, ThrowsMessage<StateError>(HasSubstr("got none in 3 steps"))) << start;
  }
}

TEST_F(JobEnd, Of_a_job_whose_earlier_run_changed_something_is_none) {
  toy::Job job(weightless_packs(/*step=*/0));
  job.config.checkpointing = {.save_dir = folder_, .period_steps = {EverySteps{1}}};
  job.task.throws_at_step = 2;
  EXPECT_THROW((void)job.train(), Error);
  job.task.throws_at_step = -1;
  EXPECT_EQ(job.train(), TrainingOutcome::kFinished);
  EXPECT_EQ(job.train(), TrainingOutcome::kFinished);  // nothing is left to do
}

// Prevents the save of `step` from creating its file.
void spoil(const fs::path& folder, std::int64_t step) {
  fs::create_directories(folder / cat("save-", step, ".tmp") / "rank-0.cbor" / "x");
}

struct SpoilingTask : toy::Task {
  void register_events(const DistContext&, EventBus& events) override {
    events.subscribe(kTrainReady, [this](const auto&) { spoil(folder, spoiled_step); });
  }
  fs::path folder;
  std::int64_t spoiled_step = kSteps;
};

// The messages of a job that saves every two steps and at its end, and of whose saves one fails.
struct Ended {
  std::string log;
  std::string thrown;
  std::optional<std::string> failure;
};
Ended end_of(const fs::path& folder, std::int64_t spoiled_step, FailedSavePolicy policy) {
  fs::remove_all(folder);
  toy::Job job(packs());
  job.config.checkpointing = {.save_dir = folder, .period_steps = {EverySteps{2}}, .on_failed_save = policy};
  SpoilingTask task;
  task.folder = folder;
  task.spoiled_step = spoiled_step;
  Ended ended;
  ::testing::internal::CaptureStderr();
  try {
    auto trainer = job.make_trainer(job.context, task);
    EXPECT_EQ(trainer.train(), TrainingOutcome::kFinished);
    trainer.export_to(folder / "export");
    EXPECT_TRUE(fs::exists(folder / "export" / "model.safetensors"));
  } catch (const IoError& error) {
    ended.thrown = error.what();
  }
  ended.log = ::testing::internal::GetCapturedStderr();
  ended.failure = job.context.failure_at_end();
  return ended;
}

TEST_F(JobEnd, Of_a_job_whose_last_save_fails_comes_after_what_follows_training) {
  for (const FailedSavePolicy policy : {FailedSavePolicy::kStop, FailedSavePolicy::kContinue}) {
    const Ended ended = end_of(folder_, kSteps, policy);
    EXPECT_EQ(ended.thrown, "");
    EXPECT_THAT(ended.failure.value_or("none"), AllOf(HasSubstr("rank-0.cbor"), HasSubstr("Step 3 is not saved")));
    EXPECT_THAT(ended.log, HasSubstr("what follows training goes on, then the program ends with exit code 1"));
  }
}

TEST_F(JobEnd, Of_a_job_whose_earlier_save_fails_is_as_asked) {
  const Ended continued = end_of(folder_, 2, FailedSavePolicy::kContinue);
  EXPECT_EQ(continued.failure, std::nullopt);
  EXPECT_THAT(continued.log, HasSubstr("Step 2 is not saved; training goes on"));
  // In the third and last step it is known that the save of the second has failed: the job has trained the model.
  const Ended stopped = end_of(folder_, 2, FailedSavePolicy::kStop);
  EXPECT_EQ(stopped.thrown, "");
  EXPECT_THAT(stopped.failure.value_or("none"), HasSubstr("Step 2 is not saved"));
}

// ---- What a job says at its start. ----

TEST(JobStart, Shows_the_corners_of_the_learning_rate_and_warns_of_narrow_types) {
  const auto log = [](at::ScalarType dtype, std::optional<Dtype> master_dtype, const OptimizerConfig& optimizer) {
    return toy::log_of([&](toy::Job& job) {
      job.provider.make_model = [dtype] {
        auto model = make_module<toy::Model>();
        model->to(dtype);
        return model;
      };
      for (auto& pack : job.provider.packs) {
        for (toy::Batch& batch : pack) batch.x = batch.x.to(dtype);
      }
      job.config.model_stage_factory.master_dtype = master_dtype;
      job.optimizer = std::make_shared<AutoOptimizerProvider>(optimizer);
    });
  };
  const AdamWConfig adamw{.lr = 0.1};
  const std::string plain = log(at::kDouble, {}, adamw);
  EXPECT_THAT(plain, HasSubstr("learning rate, times the optimiser's: 1 in step 0, linear to 0.5 in step 2"));
  EXPECT_THAT(plain, Not(HasSubstr("WARNING")));
  EXPECT_THAT(log(at::kBFloat16, {}, adamw),
              AllOf(HasSubstr("WARNING - the optimiser updates first.weight in bfloat16"),
                    HasSubstr("trainer.model_stage_factory.master_dtype"), HasSubstr("stochastic_adamw")));
  EXPECT_THAT(log(at::kBFloat16, {}, StochasticAdamWConfig{.lr = 0.1}), Not(HasSubstr("in bfloat16, where")));
  EXPECT_THAT(log(at::kBFloat16, Dtype::kFloat32, adamw), Not(HasSubstr("in bfloat16, where")));
  EXPECT_THAT(log(at::kHalf, Dtype::kFloat32, adamw),
              AllOf(HasSubstr("computes in float16 (first.weight) and losses are not scaled"),
                    HasSubstr("master_dtype = float32")));
}

TEST_F(JobEnd, Of_saves_that_are_off_begins_anew_with_a_warning) {
  toy::Job job(packs());
  job.config.checkpointing = {.save_dir = folder_, .period_steps = {EverySteps{2}}};
  EXPECT_EQ(job.train(), TrainingOutcome::kFinished);
  job.config.checkpointing.period_steps = {StepActionMode::kDisable};
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(job.train(), TrainingOutcome::kFinished);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("WARNING - begins anew, since checkpointing.period_steps is \"disable\""),
                    HasSubstr("save-3 is not read")));
}

TEST_F(JobEnd, Of_a_job_that_continues_with_other_settings_names_all_in_one_line) {
  toy::Job job(packs());
  job.config.checkpointing = {.save_dir = folder_, .period_steps = {EverySteps{1}}};
  job.optimizer = std::make_shared<AutoOptimizerProvider>(AdamWConfig{.lr = 0.1});
  job.config.schedule.total_steps = 1;
  EXPECT_EQ(job.train(), TrainingOutcome::kFinished);
  const auto told = [&](std::int64_t total_steps) {
    job.config.schedule.total_steps = total_steps;
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(job.train(), TrainingOutcome::kFinished);
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_THAT(told(1), Not(HasSubstr("settings that are not those of")));
  job.config.run.name = "another";
  EXPECT_THAT(told(2), HasSubstr("save-1: trainer.schedule.total_steps 1 -> 2\n"));
  job.optimizer = std::make_shared<AutoOptimizerProvider>(AdamWConfig{.lr = 0.1, .betas = {0.8, 0.999}});
  job.config.gradient_clipping.max_norm = 2.0;
  job.config.determinism.base_seed = 3;
  EXPECT_THAT(told(3), HasSubstr("WARNING - settings that are not those of " + (folder_ / "save-2").string() +
                                 ": optimizer.betas.0 0.9 -> 0.8; trainer.determinism.base_seed 0 -> 3; "
                                 "trainer.gradient_clipping.max_norm null -> 2.0; "
                                 "trainer.schedule.total_steps 2 -> 3\n"));
}

TEST_F(JobEnd, Exports_modules_of_ones_own_that_are_called_as_adapters_are) {
  struct Own : toy::Model {
    const ModulePtr<Linear> own = register_module<Linear>("lora_A", LinearConfig{2, 3});
  };
  const auto model = make_module<Own>();
  EXPECT_THAT(toy::Provider().prepare_export(*model).mapper.outputs(), ::testing::Contains("lora_A.weight"));
  (void)inject_peft(LoraConfig{.module_name_pattern = "first", .params = {.r = 1, .alpha = 1.0}}, *model);
  EXPECT_THAT(
      toy::Provider().prepare_export(*model).mapper.outputs(),
      ::testing::UnorderedElementsAre("first.bias", "first.weight", "lora_A.weight", "second.bias", "second.weight"));
}

TEST_F(JobEnd, Of_a_job_whose_adapters_get_another_scale_is_refused_or_told) {
  toy::Job job(packs());
  job.config.checkpointing = {.save_dir = folder_, .period_steps = {EverySteps{1}}};
  job.provider.method = LoraConfig{.module_name_pattern = "first", .params = {.r = 1, .alpha = 4.0}};
  job.config.schedule.total_steps = 1;
  EXPECT_EQ(job.train(), TrainingOutcome::kFinished);
  std::get<LoraConfig>(*job.provider.method).params.alpha = 1.0;
  EXPECT_THAT(test::message_of<ConfigError>([&] { (void)job.train(); }),
              ::testing::AllOf(HasSubstr("model.adapters.params.alpha = 4.0 of the saved job"), HasSubstr("got 1.0")));
  std::get<LoraConfig>(*job.provider.method).params.alpha = 4.0;
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(job.train(), TrainingOutcome::kFinished);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("all steps of this job are done"));
  job.config.checkpointing = {.period_steps = {StepActionMode::kDisable}};
  job.config.model_stage_factory.source_checkpoint = folder_;
  for (const double alpha : {4.0, 8.0}) {
    std::get<LoraConfig>(*job.provider.method).params.alpha = alpha;
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(job.train(), TrainingOutcome::kFinished);
    const std::string told = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(told.find("that had other settings: adapters.params.alpha 4.0 -> 8.0") != std::string::npos, alpha == 8.0)
        << told;
  }
}

}  // namespace
}  // namespace d9d::job_end_test
