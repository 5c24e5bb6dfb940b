// Jobs that go on with other data at a resume (trainer.data_phase).
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/loop/task/shard_over_data.h"

#include "tests/loop/run/toy_job.h"
#include "tests/support/ranks.h"

namespace d9d::test::data_phase_test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr std::int64_t kSteps = 8;
constexpr std::int64_t kSwitch = 4;  // steps of the first data

using Steps = std::vector<std::int64_t>;  // the first sample of each step

Steps steps_from(std::int64_t first, std::int64_t count) {
  Steps steps;
  for (std::int64_t i = 0; i < count; ++i) steps.push_back(first + 4 * i);
  return steps;
}
const Steps kWeb = steps_from(0, 6), kBooks = steps_from(500, 6);

struct Provider : toy::Provider {
  void parallelize_model_stage(const DistContext& context, const PipelineStageInfo&, Module&) override {
    shard_over_data(context, model.shared(), {model->first.shared(), model->second.shared()});
  }
};

struct Task : toy::Task {
  void register_events(const DistContext&, EventBus& events) override {
    events.subscribe(kTrainStepPost, [this](const FinishedStep& step) { losses.push_back(step.loss); });
  }
  std::vector<double> losses;
};

struct Plan {
  Steps data;
  std::optional<std::string> phase = {};
  std::int64_t fails_at_step = -1;
  std::int64_t num_ranks = 1;
  std::optional<std::int64_t> total_steps = kSteps;
  std::optional<std::int64_t> known_total = {};
};

struct Result {
  std::vector<double> losses;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> clocks;  // of random layers, in each forward
  std::map<std::string, at::Tensor> parameters;
};

class DataPhase : public ::testing::Test {
 protected:
  void SetUp() override { fs::remove_all(folder_); }
  void TearDown() override { fs::remove_all(folder_); }

  Result train(const Plan& plan) const {
    Result result;
    const DeviceMeshParameters mesh{.data_parallel_shard = plan.num_ranks};
    run_ranks(RankBackend::kThreads, plan.num_ranks, [&](World& world) {
      const DistContext context({.mesh = mesh, .world = borrowed(world), .local_rank = world.rank()});
      toy::Job job({});
      Task task;
      task.throws_at_step = plan.fails_at_step;
      Provider provider;
      provider.known_total = plan.known_total;
      for (const std::int64_t first : plan.data) {
        std::vector<toy::Batch>& pack = provider.packs.emplace_back();
        for (std::int64_t i = world.rank(); i < 4; i += plan.num_ranks) pack.push_back(toy::samples(first + i, 1));
      }
      job.config.schedule.total_steps = plan.total_steps;
      job.config.data_phase = plan.phase;
      job.config.checkpointing = {.save_dir = folder_, .period_steps = {EverySteps{2}}};
      AutoOptimizerProvider optimizer(AdamWConfig{.lr = 0.05});
      Trainer<toy::Types> trainer(context, job.config,
                                  {.task = task,
                                   .model = provider,
                                   .data = provider,
                                   .optimizer = optimizer,
                                   .lr_scheduler = job.lr_scheduler});
      if (plan.fails_at_step < 0) {
        EXPECT_EQ(trainer.train(), TrainingOutcome::kFinished);
      } else {
        EXPECT_THROW((void)trainer.train(), Error);
      }
      std::map<std::string, at::Tensor> parameters;
      if (plan.fails_at_step < 0) parameters = trainer.module().full_state_dict();
      if (!context.is_main_process()) return;
      result = {.losses = task.losses, .clocks = provider.model->clocks};
      for (const auto& [name, tensor] : parameters) result.parameters.emplace(name, tensor.clone());
    });
    return result;
  }

  const fs::path folder_ = fs::path(::testing::TempDir()) /
                           cat("d9d_phase_", ::testing::UnitTest::GetInstance()->current_test_info()->name());
};

template <class T>
std::vector<T> part(const std::vector<T>& all, std::size_t begin, std::size_t end) {
  return {all.begin() + static_cast<std::ptrdiff_t>(begin), all.begin() + static_cast<std::ptrdiff_t>(end)};
}

TEST_F(DataPhase, Trains_as_one_job_on_both_data_bit_for_bit_wherever_it_is_killed) {
  Steps both = part(kWeb, 0, kSwitch);
  both.insert(both.end(), kBooks.begin(), kBooks.end());
  for (const std::int64_t num_ranks : {1, 2}) {
    for (const std::optional<std::string>& first_phase :
         {std::optional<std::string>(), std::optional<std::string>("web")}) {
      fs::remove_all(folder_);
      const Result whole = train({.data = both, .num_ranks = num_ranks});
      fs::remove_all(folder_);
      const auto first = [&](std::int64_t fails) {
        return train({.data = kWeb, .phase = first_phase, .fails_at_step = fails, .num_ranks = num_ranks}).losses;
      };
      const auto second = [&](const std::optional<std::string>& phase, std::int64_t fails) {
        return train({.data = kBooks, .phase = phase, .fails_at_step = fails, .num_ranks = num_ranks});
      };
      EXPECT_EQ(first(3), part(whole.losses, 0, 3));
      EXPECT_EQ(first(kSwitch), part(whole.losses, 2, 4));
      EXPECT_EQ(second("books", 5).losses, part(whole.losses, 4, 5));  // killed before it has saved
      EXPECT_EQ(second("books", 7).losses, part(whole.losses, 4, 7));  // begins anew again, since nothing was saved
      const Result end = second(std::nullopt, -1);                     // goes on in the phase of the checkpoint
      EXPECT_EQ(end.losses, part(whole.losses, 6, 8));
      const std::size_t forwards = whole.clocks.size() / kSteps;
      EXPECT_EQ(end.clocks, part(whole.clocks, 6 * forwards, 8 * forwards));
      for (const auto& [name, values] : whole.parameters)
        EXPECT_TRUE(at::equal(end.parameters.at(name), values)) << name;
    }
  }
}

TEST_F(DataPhase, Of_known_length_adds_its_steps_to_those_that_are_done) {
  const Steps short_web = part(kWeb, 0, 4), short_books = part(kBooks, 0, 3);
  EXPECT_EQ(train({.data = short_web, .total_steps = {}, .known_total = 4}).losses.size(), 4U);
  const Plan books{.data = short_books, .phase = "books", .total_steps = {}, .known_total = 3};
  Plan too_long = books;
  too_long.total_steps = 8;
  EXPECT_THAT([&] { (void)train(too_long); }, ThrowsMessage<ConfigError>(HasSubstr("at most the 7 steps")));
  Plan killed = books;
  killed.fails_at_step = 6;
  EXPECT_EQ(train(killed).losses.size(), 2U);
  EXPECT_EQ(train(books).losses.size(), 1U);
  EXPECT_EQ(train(books).losses.size(), 0U);
  EXPECT_TRUE(fs::exists(folder_ / "save-7"));
}

TEST_F(DataPhase, That_begins_is_told) {
  (void)train({.data = kWeb, .fails_at_step = kSwitch});
  const auto told = [&](const std::string& phase) {
    ::testing::internal::CaptureStderr();
    (void)train({.data = kBooks, .phase = phase, .fails_at_step = 6});
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_THAT(told("books"),
              HasSubstr("trainer.data_phase 'books' begins after step 4: the data is read from its start"));
  EXPECT_THAT(told("books"), ::testing::Not(HasSubstr("begins after step")));
  EXPECT_THAT(told("more books"), HasSubstr("trainer.data_phase 'more books' begins after step 6"));
}

}  // namespace
}  // namespace d9d::test::data_phase_test
