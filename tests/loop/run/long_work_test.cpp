// What takes longer than a step may take longer than trainer.timeout.step_timeout: other ranks wait for it.
#include <chrono>
#include <filesystem>
#include <thread>

#include <gmock/gmock.h>

#include "tests/loop/run/toy_job.h"
#include "tests/support/ranks.h"

namespace d9d::test::long_work_test {
namespace {

constexpr std::chrono::milliseconds kLong{1500};  // longer than the step timeout of a second

// The last of the ranks takes long in one of these, around its second step.
enum class Slow : std::uint8_t { kSave, kEvaluation, kSleep, kStep };

struct SlowTask : toy::Task {
  MetricMap create_metrics() override { return {}; }
  void register_events(const DistContext&, EventBus& events) override {
    events.subscribe(kTrainStepPre, [this](const TrainStep& step) {
      is_second = step.schedule.current_step() == 1;
      if (slow == Slow::kStep) take_long();
    });
    events.subscribe(kTrainEvaluationPre, [this](const auto&) {
      if (slow == Slow::kEvaluation) take_long();
    });
    events.subscribe(kTrainSleepPre, [this](const auto&) {
      if (slow == Slow::kSleep) take_long();
    });
  }
  nlohmann::json state() const override {
    if (slow == Slow::kSave) take_long();
    return nullptr;
  }
  void take_long() const {
    if (is_last_rank && is_second) std::this_thread::sleep_for(kLong);
  }

  Slow slow = Slow::kStep;
  bool is_last_rank = false;
  bool is_second = false;
};

void train(Slow slow) {
  const auto folder = std::filesystem::path(::testing::TempDir()) / "d9d_long_work";
  std::filesystem::remove_all(folder);
  run_ranks(RankBackend::kThreads, 2, [&](World& world) {
    const DistContext context({.mesh = {.data_parallel_replicate = 2}, .world = borrowed(world)});
    const std::int64_t first = 10 * world.rank();
    toy::Job job({{toy::samples(first, 1)}, {toy::samples(first + 1, 2)}, {toy::samples(first + 3, 2)}});
    job.config.timeout = {.init_timeout = 60, .step_timeout = 1};
    job.config.checkpointing.save_dir = folder.string();
    job.config.checkpointing.period_steps = {EverySteps{2}};
    job.config.evaluation["unseen"] = {.period_steps = {EverySteps{2}}};
    toy::Provider unseen;
    unseen.packs = {{toy::samples(first + 5, 1)}};
    SlowTask task;
    task.slow = slow;
    task.is_last_rank = world.rank() == 1;
    Trainer<toy::Types> trainer(context, job.config,
                                {.task = task,
                                 .model = job.provider,
                                 .data = job.provider,
                                 .optimizer = *job.optimizer,
                                 .lr_scheduler = job.lr_scheduler,
                                 .evaluation = {{"unseen", &unseen}}});
    trainer.events().subscribe(kTrainStepPost, [&](const FinishedStep&) {
      trainer.sleep();
      trainer.wake();
    });
    EXPECT_EQ(trainer.train(), TrainingOutcome::kFinished);
    EXPECT_EQ(world.timeout(), std::chrono::seconds(60));  // an export may follow
  });
  std::filesystem::remove_all(folder);
}

TEST(LongWork, Of_a_save_an_evaluation_or_a_sleep_may_take_longer_than_a_step) {
  for (const Slow slow : {Slow::kSave, Slow::kEvaluation, Slow::kSleep}) {
    SCOPED_TRACE(static_cast<int>(slow));
    train(slow);
  }
}

TEST(LongWork, Of_a_step_may_not) { EXPECT_THROW(train(Slow::kStep), CommunicationError); }

}  // namespace
}  // namespace d9d::test::long_work_test
