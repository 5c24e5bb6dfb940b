// Metrics of jobs that continue: what ranks had accumulated since the last log is in it, on any number of ranks.
#include <filesystem>
#include <fstream>
#include <span>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/model_state/io/block_checksums.h"

#include "tests/loop/run/toy_job.h"
#include "tests/support/ranks.h"

namespace d9d::test::resume_metrics_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

constexpr std::int64_t kSteps = 8;
constexpr std::int64_t kSamples = 4;  // of a step

// The number of samples, and the range of their inputs.
struct Inputs : Metric {
  explicit Inputs(std::int64_t num_sums) : sums({num_sums}) {}
  at::Tensor compute() const override { return largest.value() - smallest.value() + 1000 * sums.value()[0]; }
  std::vector<Accumulator*> accumulators() override { return {&sums, &largest, &smallest}; }
  Accumulator sums, largest{{}, ReduceOp::kMax}, smallest{{}, ReduceOp::kMin};
};

// Keeps nothing in accumulators.
struct Constant : Metric {
  at::Tensor compute() const override { return at::ones({}); }
  std::vector<Accumulator*> accumulators() override { return {}; }
};

struct Plan {
  std::int64_t num_ranks = 1;
  bool saves = true;
  std::int64_t fails_at_step = -1;
  std::int64_t num_sums = 2;  // of Inputs
  bool has_inputs = true;
  bool has_constant = false;
};

struct Task : toy::Task {
  explicit Task(const Plan& of_job) : plan(of_job) { throws_at_step = plan.fails_at_step; }
  MetricMap create_metrics() override {
    MetricMap metrics = toy::Task::create_metrics();
    if (plan.has_inputs) metrics.emplace("inputs", std::make_shared<Inputs>(plan.num_sums));
    if (plan.has_constant) metrics.emplace("constant", std::make_shared<Constant>());
    return metrics;
  }
  void update_metrics(const State& state, const MetricMap& metrics) override {
    toy::Task::update_metrics(state, metrics);
    if (!plan.has_inputs) return;
    auto& inputs = metric_at<Inputs>(metrics, "inputs");
    inputs.sums.update(at::full({plan.num_sums}, state.batch.x.size(0)));
    inputs.largest.update(state.batch.x.max());
    inputs.smallest.update(state.batch.x.min());
  }
  const Plan plan;
};

class ResumeMetrics : public ::testing::Test {
 protected:
  void SetUp() override { fs::remove_all(folder_); }
  void TearDown() override { fs::remove_all(folder_); }

  // Saves the third and the sixth of eight steps, and logs the fourth and the last.
  void train(const Plan& plan) const {
    run_ranks(RankBackend::kThreads, plan.num_ranks, [&](World& world) {
      const DistContext context(
          {.mesh = {.data_parallel_replicate = plan.num_ranks}, .world = borrowed(world), .local_rank = world.rank()});
      std::vector<std::vector<toy::Batch>> packs;
      for (std::int64_t step = 0; step < kSteps; ++step) {
        packs.emplace_back();
        for (std::int64_t i = world.rank(); i < kSamples; i += plan.num_ranks) {
          packs.back().push_back(toy::samples(kSamples * step + i, 1));
          if (step > 2) packs.back().back().x.mul_(0.01);  // the extremes are in the first three steps
        }
      }
      toy::Job job(packs);
      job.config.logging.period_steps = {EverySteps{4}};
      if (plan.saves) job.config.checkpointing = {.save_dir = folder_, .period_steps = {EverySteps{3}}};
      Task task(plan);
      job.make_trainer(context, task).train();
    });
  }
  // Ends in the sixth step, after saving the third.
  void break_off(Plan plan) const {
    plan.fails_at_step = 5;
    EXPECT_THROW(train(plan), Error);
    ASSERT_TRUE(fs::exists(folder_ / "save-3"));
  }
  static std::vector<double> logged(const std::string& name) {
    std::vector<double> values;
    for (const nlohmann::json& line : toy::Job::logged()) {
      if (line.contains(name)) values.push_back(line.at(name));
    }
    return values;
  }

  const fs::path folder_ =
      fs::path(::testing::TempDir()) / cat("d9d_", ::testing::UnitTest::GetInstance()->current_test_info()->name());
};

TEST_F(ResumeMetrics, Continue_on_another_number_of_ranks_with_the_values_of_one) {
  train({.saves = false});
  const std::vector<double> whole = logged("inputs");
  ASSERT_EQ(whole.size(), 2U);
  EXPECT_GT(whole[0] - whole[1], 0.1) << "the extremes of the steps that are saved are no others";
  for (const std::int64_t from : {1, 2, 4}) {
    for (const std::int64_t to : {4, 2, 1}) {
      SCOPED_TRACE(cat("from ", from, " to ", to, " ranks"));
      fs::remove_all(folder_);
      break_off({.num_ranks = from});
      train({.num_ranks = to});
      EXPECT_EQ(logged("inputs"), whole);
    }
  }
}

TEST_F(ResumeMetrics, With_other_accumulators_are_refused) {
  break_off({.num_ranks = 2});
  EXPECT_THAT([&] { train({.num_ranks = 2, .num_sums = 3}); },
              ThrowsMessage<StateError>(
                  AllOf(HasSubstr("the metric 'inputs'"), HasSubstr(R"("shape":[2])"), HasSubstr(R"("shape":[3])"))));
}

// Writes the metrics of a checkpoint as versions did in which each had one tensor of sums.
void write_as_before_accumulators(const fs::path& manifest) {
  std::ifstream in(manifest);
  auto json = nlohmann::ordered_json::parse(in);
  for (auto& rank : json.at("ranks")) {
    for (auto& metric : rank.at("metrics")) {
      metric = nlohmann::ordered_json{{"shape", metric[0].at("shape")}, {"sums", metric[0].at("values")}};
    }
  }
  json.erase("checksum");
  const std::string text = json.dump();
  json["checksum"] = checksum(std::as_bytes(std::span(text)));
  std::ofstream(manifest) << json.dump(1);
}

TEST_F(ResumeMetrics, Continue_from_a_checkpoint_that_is_older_than_accumulators) {
  const Plan plan{.num_ranks = 2, .has_inputs = false};
  break_off(plan);
  write_as_before_accumulators(folder_ / "save-3" / "manifest.json");
  train(plan);
  EXPECT_EQ(logged("num_samples"), std::vector<double>(2, 4 * kSamples));
}

TEST_F(ResumeMetrics, Without_accumulators_are_named_once_by_a_job_that_saves) {
  for (const bool saves : {false, true}) {
    ::testing::internal::CaptureStderr();
    train({.num_ranks = 2, .saves = saves, .has_constant = true});
    const std::string text = ::testing::internal::GetCapturedStderr();
    const std::string line = "the metric 'constant' has no accumulators";
    EXPECT_EQ(text.find(line) != std::string::npos, saves) << text;
    EXPECT_EQ(text.find(line), text.rfind(line)) << text;
    EXPECT_THAT(text, Not(HasSubstr("the metric 'inputs'")));
  }
}

}  // namespace
}  // namespace d9d::test::resume_metrics_test
