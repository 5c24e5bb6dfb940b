// Exports of a job while it trains.
#include "d9d/loop/checkpoint/job_exports.h"

#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/model_state/io/huggingface_directory.h"

#include "tests/loop/run/toy_job.h"

namespace d9d::test::job_exports_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

constexpr std::int64_t kSteps = 5;

std::vector<std::vector<toy::Batch>> packs() {
  std::vector<std::vector<toy::Batch>> packs;
  for (std::int64_t step = 0; step < kSteps; ++step) packs.push_back({toy::samples(3 * step, 3)});
  return packs;
}

struct Task : toy::Task {
  void register_events(const DistContext&, EventBus& events) override {
    events.subscribe(kTrainStepPost, [this](const FinishedStep&) {
      weights.push_back(model->first->weight->stored().detach().clone());
    });
  }
  LossResult compute_loss(const Output& output, State& state, const JobSchedule& schedule) override {
    if (schedule.current_step() + 1 == interrupted_in_step) (void)std::raise(SIGTERM);
    return toy::Task::compute_loss(output, state, schedule);
  }
  const toy::Model* model = nullptr;
  std::vector<at::Tensor> weights;  // after each step
  std::int64_t interrupted_in_step = -1;
};

class JobExports : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::remove_all(folder_);
    job_.config.exports = {.folder = folder_ / "exports", .period_steps = {EverySteps{2}}};
  }
  void TearDown() override { fs::remove_all(folder_); }

  TrainingOutcome train() {
    Trainer<toy::Types> trainer = job_.make_trainer(job_.context, task_);
    task_.model = &*job_.provider.model;
    return trainer.train();
  }
  std::vector<std::string> exported() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_ / "exports")) names.push_back(entry.path().filename());
    std::ranges::sort(names);
    return names;
  }
  at::Tensor exported_weight(std::int64_t step) const {
    return HuggingFaceDirectory(folder_ / "exports" / cat("step-", step)).find("first.weight")->read();
  }
  void save_every_step() { job_.config.checkpointing = {.save_dir = folder_, .period_steps = {EverySteps{1}}}; }

  const fs::path folder_ = fs::path(::testing::TempDir()) /
                           cat("d9d_exports_", ::testing::UnitTest::GetInstance()->current_test_info()->name());
  toy::Job job_{packs()};
  Task task_;
};

TEST_F(JobExports, Are_the_model_after_each_step_of_the_period) {
  EXPECT_EQ(train(), TrainingOutcome::kFinished);
  EXPECT_THAT(exported(), ElementsAre("step-2", "step-4"));
  for (const std::int64_t step : {2, 4}) {
    EXPECT_TRUE(at::equal(exported_weight(step), task_.weights.at(static_cast<std::size_t>(step - 1)))) << step;
  }
  job_.config.exports->period_steps = {StepActionMode::kLastStep};
  fs::remove_all(folder_);
  EXPECT_EQ(train(), TrainingOutcome::kFinished);
  EXPECT_THAT(exported(), ElementsAre("step-5"));
}

TEST_F(JobExports, That_a_killed_job_has_not_made_are_made_when_it_continues) {
  save_every_step();
  task_.interrupted_in_step = 2;
  EXPECT_EQ(train(), TrainingOutcome::kInterrupted);
  EXPECT_TRUE(fs::exists(folder_ / "save-2"));
  EXPECT_THAT(exported(), IsEmpty());  // a job that was asked to end at once
  const at::Tensor second = task_.weights.back();
  task_.interrupted_in_step = -1;
  EXPECT_EQ(train(), TrainingOutcome::kFinished);
  EXPECT_THAT(exported(), ElementsAre("step-2", "step-4"));
  EXPECT_TRUE(at::equal(exported_weight(2), second));
}

TEST_F(JobExports, That_are_there_are_not_made_again_when_a_job_continues) {
  save_every_step();
  job_.config.schedule.total_steps = 4;
  EXPECT_EQ(train(), TrainingOutcome::kFinished);
  const fs::path file = folder_ / "exports" / "step-4" / "model.safetensors";
  const auto time = fs::last_write_time(file);
  EXPECT_EQ(train(), TrainingOutcome::kFinished);
  EXPECT_EQ(fs::last_write_time(file), time);
}

TEST_F(JobExports, That_would_fail_later_are_refused_before_a_step) {
  const auto refusal = [&]() -> std::string {
    try {
      (void)train();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  const fs::path exports = folder_ / "exports";
  fs::create_directories(exports / "step-4");
  std::ofstream(exports / "step-4" / "thesis.tex") << "text";
  EXPECT_THAT(refusal(), AllOf(HasSubstr("step-4"), HasSubstr("trainer.exports.folder")));
  fs::remove_all(exports);
  fs::create_directories(exports);
  {
    const FolderLock other(exports);
    EXPECT_THAT(refusal(), AllOf(HasSubstr(exports.string()), HasSubstr("in use by no other job")));
  }
  job_.config.checkpointing = {.save_dir = exports / "saves", .period_steps = {EverySteps{1}}};
  EXPECT_THAT(refusal(), AllOf(HasSubstr("folder of its own for the export"),
                               HasSubstr("trainer.checkpointing.save_dir"), HasSubstr("trainer.exports.folder")));
  EXPECT_TRUE(task_.weights.empty());
}

}  // namespace
}  // namespace d9d::test::job_exports_test
