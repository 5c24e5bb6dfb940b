// A program ends its job before the last step.
#include <filesystem>
#include <functional>
#include <mutex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/loop/run/logged_job.h"
#include "tests/support/ranks.h"

namespace d9d::stop_request_test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::int64_t kSteps = 5;

std::vector<std::vector<toy::Batch>> packs() {
  std::vector<std::vector<toy::Batch>> packs;
  for (std::int64_t step = 0; step < kSteps; ++step) packs.push_back({toy::samples(2 * step, 2)});
  return packs;
}

// Asks to stop in step 2, before or after it is trained.
struct Stopper : toy::Task {
  void register_events(const DistContext&, EventBus& events) override {
    const auto ask = [](const TrainStep& step) {
      if (step.schedule.current_step() == 2) step.stop.request("three steps are enough");
    };
    if (asks_before) events.subscribe(kTrainStepPre, ask);
    if (asks_after) events.subscribe(kTrainStepPost, ask);
  }
  bool asks_before = false;
  bool asks_after = false;
};

TEST(StopRequest, Of_a_handler_ends_the_job_after_the_step_in_which_it_ran) {
  for (const bool before : {true, false}) {
    toy::Job job(packs());
    Stopper task;
    (before ? task.asks_before : task.asks_after) = true;
    Trainer<toy::Types> trainer = job.make_trainer(job.context, task);
    EXPECT_EQ(trainer.train(), TrainingOutcome::kStopped) << before;
    EXPECT_EQ(trainer.schedule().current_step(), 3) << before;
    EXPECT_EQ(job.context.stop_signal(), 0);
    EXPECT_EQ(task.log.back(), "finalize");
  }
}

TEST(StopRequest, Of_one_rank_ends_the_job_on_all_after_the_same_step) {
  for (const bool before : {true, false}) {
    std::mutex mutex;
    std::vector<std::int64_t> steps;
    test::run_ranks(test::RankBackend::kThreads, 3, [&](World& world) {
      const DistContext context({.mesh = {.data_parallel_replicate = 3}, .world = test::borrowed(world)});
      toy::Job job(packs());
      for (std::int64_t i = 0; i < kSteps; ++i) {  // replicas with equal data would be refused
        job.provider.packs[static_cast<std::size_t>(i)] = {toy::samples(6 * i + 2 * world.rank(), 2)};
      }
      Stopper task;
      (before ? task.asks_before : task.asks_after) = world.rank() == 1;
      Trainer<toy::Types> trainer = job.make_trainer(context, task);
      const TrainingOutcome outcome = trainer.train();
      const std::lock_guard lock(mutex);
      EXPECT_EQ(outcome, TrainingOutcome::kStopped);
      steps.push_back(trainer.schedule().current_step());
    });
    EXPECT_THAT(steps, ElementsAre(3, 3, 3)) << before;
  }
}

TEST(StopRequest, Before_the_run_ends_it_after_its_first_step_and_not_the_next_run) {
  toy::Job job(packs());
  Trainer<toy::Types> trainer = job.make_trainer();
  trainer.request_stop("a try");
  EXPECT_EQ(trainer.train(), TrainingOutcome::kStopped);
  EXPECT_EQ(trainer.schedule().current_step(), 1);
  EXPECT_EQ(trainer.train(), TrainingOutcome::kFinished);
  EXPECT_EQ(trainer.schedule().current_step(), kSteps);
}

TEST(StopRequest, In_the_last_step_leaves_the_job_finished) {
  toy::Job job({packs()[0], packs()[1], packs()[2]});
  Stopper task;
  task.asks_after = true;
  EXPECT_EQ(job.make_trainer(job.context, task).train(), TrainingOutcome::kFinished);
}

TEST(StopRequest, Saves_the_step_and_is_told_in_the_log) {
  const fs::path folder = fs::path(::testing::TempDir()) / "d9d_stop_request";
  fs::remove_all(folder);
  toy::Job job(packs());
  job.config.checkpointing.save_dir = folder.string();
  job.config.checkpointing.period_steps = {StepActionMode::kLastStep};
  Stopper task;
  task.asks_after = true;
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(job.make_trainer(job.context, task).train(), TrainingOutcome::kStopped);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("stopped after step 3 of 5: three steps are enough"));
  EXPECT_TRUE(fs::exists(folder / "save-3"));
  fs::remove_all(folder);
}

}  // namespace
}  // namespace d9d::stop_request_test
