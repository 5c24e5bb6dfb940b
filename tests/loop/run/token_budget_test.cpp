// A custom stream that fills each step with as many microbatches as a budget allows, and divides its data over ranks
// itself.
#include <filesystem>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/loop/run/trainer.h"
#include "d9d/loop/task/replicate_over_data.h"

#include "tests/loop/run/toy_job.h"
#include "tests/support/ranks.h"

namespace d9d::test::token_budget_test {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr std::int64_t kSteps = 7;
constexpr std::int64_t kBudget = 6;  // samples of a step, on each of the data-parallel ranks

constexpr std::int64_t kNever = 1'000'000;  // a row that no job reaches

// Rows of 1 to 4 samples, dealt to two ranks. Each stream goes through the rows of both ranks, so that its position is
// that of the job, but only returns the rows of `ranks`.
struct BudgetStream {
  [[nodiscard]] static std::int64_t length_of(std::int64_t row) { return 1 + row * row % 4 + row % 3 / 2; }

  std::optional<std::vector<toy::Batch>> next() {
    std::vector<toy::Batch> pack;
    for (const std::int64_t rank : {0, 1}) {
      std::int64_t& row = rows[static_cast<std::size_t>(rank)];
      if (row >= forgets_the_others_from && !ranks.contains(rank)) continue;
      for (std::int64_t left = kBudget; length_of(row) <= left; row += 2) {
        left -= length_of(row);
        if (ranks.contains(rank)) pack.push_back(toy::samples(10 * row, length_of(row)));
      }
    }
    nums_of_microbatches->push_back(std::ssize(pack));
    return pack;
  }
  [[nodiscard]] std::optional<std::int64_t> total_steps() const { return std::nullopt; }
  [[nodiscard]] nlohmann::json state() const { return rows; }
  void load_state(const nlohmann::json& state) { rows = state.get<std::vector<std::int64_t>>(); }

  std::set<std::int64_t> ranks = {};
  std::int64_t forgets_the_others_from = kNever;  // from this row on
  std::shared_ptr<std::vector<std::int64_t>> nums_of_microbatches = {};
  std::vector<std::int64_t> rows = {0, 1};
};

struct Result {
  std::vector<double> losses = {};
  std::map<std::string, at::Tensor> parameters = {};
  std::vector<std::int64_t> nums_of_microbatches = {};
};

// Rows are dealt to two ranks; a single rank has the rows of both.
Result train(std::int64_t num_ranks, const std::filesystem::path& folder, std::int64_t throws_at_step,
             std::int64_t forgets_the_others_from = kNever) {
  Result result;
  run_ranks(RankBackend::kThreads, num_ranks, [&](World& world) {
    const DistContext context({.mesh = {.data_parallel_replicate = num_ranks},
                               .world = borrowed(world),
                               .local_rank = world.rank(),
                               .log_sink = [](std::string_view) {}});
    struct Provider : toy::Provider {
      void parallelize_model_stage(const DistContext& ranks, const PipelineStageInfo&, Module& module) override {
        replicate_over_data(ranks, module);
      }
      std::unique_ptr<PackStream<toy::Batch>> build_pack_stream(const DistContext&,
                                                                std::optional<std::int64_t>) override {
        return as_pack_stream<toy::Batch>(stream);
      }
      BudgetStream stream;
    } provider;
    const auto nums_of_microbatches = std::make_shared<std::vector<std::int64_t>>();
    provider.stream = {.ranks = num_ranks == 2 ? std::set{world.rank()} : std::set<std::int64_t>{0, 1},
                       .forgets_the_others_from = forgets_the_others_from,
                       .nums_of_microbatches = nums_of_microbatches};
    struct Task : toy::Task {
      void register_events(const DistContext&, EventBus& events) override {
        events.subscribe(kTrainStepPost, [this](const FinishedStep& step) { losses.push_back(step.loss); });
      }
      std::vector<double> losses;
    } task;
    task.throws_at_step = throws_at_step;
    toy::Job job({});
    job.config.schedule.total_steps = kSteps;
    job.config.checkpointing = {.save_dir = folder, .period_steps = {EverySteps{3}}};
    AutoOptimizerProvider optimizer(AdamWConfig{.lr = 0.05});
    Trainer<toy::Types> trainer(
        context, job.config,
        {.task = task, .model = provider, .data = provider, .optimizer = optimizer, .lr_scheduler = job.lr_scheduler});
    EXPECT_EQ(trainer.train(), TrainingOutcome::kFinished);
    const auto parameters = trainer.module().full_state_dict();
    if (!context.is_main_process()) return;
    result = {.losses = task.losses, .nums_of_microbatches = *nums_of_microbatches};
    for (const auto& [name, tensor] : parameters) result.parameters.emplace(name, tensor.clone());
  });
  return result;
}

TEST(TokenBudget, Trains_on_two_ranks_as_on_one_and_resumes) {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "d9d_token_budget";
  const auto fresh = [&](const char* name) {
    std::filesystem::remove_all(folder / name);
    return folder / name;
  };
  const Result one = train(1, fresh("one"), -1), two = train(2, fresh("two"), -1);
  EXPECT_GE(std::set(two.nums_of_microbatches.begin(), two.nums_of_microbatches.end()).size(), 2U);
  ASSERT_EQ(two.losses.size(), static_cast<std::size_t>(kSteps));
  for (std::size_t i = 0; i < two.losses.size(); ++i) EXPECT_NEAR(two.losses[i], one.losses[i], 1e-12);
  for (const auto& [name, values] : one.parameters) {
    EXPECT_TRUE(at::allclose(two.parameters.at(name), values, 1e-12, 1e-12)) << name;
  }

  const std::filesystem::path broken_off = fresh("broken_off");
  EXPECT_THROW((void)train(2, broken_off, /*throws_at_step=*/5), Error);
  const Result rest = train(2, broken_off, -1);
  EXPECT_EQ(rest.losses, std::vector<double>(two.losses.begin() + 3, two.losses.end()));
  for (const auto& [name, values] : two.parameters) {
    EXPECT_TRUE(at::equal(rest.parameters.at(name), values)) << name;
  }
  std::filesystem::remove_all(folder);
}

// Otherwise rank 1 would continue at the position of rank 0.
TEST(TokenBudget, A_state_of_one_rank_alone_is_refused_at_the_first_save_and_at_any_later_one) {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "d9d_token_budget_of_a_rank";
  for (const std::int64_t from_row : {0, 20}) {
    std::filesystem::remove_all(folder);
    EXPECT_THAT([&] { (void)train(2, folder, -1, from_row); },
                ThrowsMessage<ConfigError>(::testing::AllOf(
                    HasSubstr("expected one state of the data stream on all ranks"), HasSubstr("] on rank 0 and ["))));
    EXPECT_EQ(std::filesystem::exists(folder / "save-3"), from_row == 20) << "that one was right";
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace d9d::test::token_budget_test
