// trainer.memory_budget: a job chooses what its layers recompute, trains as without a budget bit for bit, and stays
// within it.
#include <mutex>
#include <regex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/config/byte_size.h"
#include "d9d/loop/measure/activation_units.h"

#include "tests/loop/run/pipeline_job.h"
#include "tests/support/turns.h"

namespace d9d::test::memory_budget_test {
namespace {

namespace fs = std::filesystem;
using pipeline::expect_equal;
using pipeline::folder;
using pipeline::PipelineJob;
using pipeline::train;
using pipeline::Trained;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Microbatches of so many positions that activations take most of the memory.
std::vector<TokenBatch> wide_microbatches(std::int64_t step) {
  constexpr std::int64_t kRows = 24, kLength = 16;
  std::vector<TokenBatch> all;
  for (std::int64_t i = 0; i < 4; ++i) {
    const at::Tensor index = at::arange(kRows * kLength).view({kRows, kLength}) + 5 * step + i;
    all.push_back({.input_ids = (index * index + 3 * index).remainder(20),
                   .labels = (index * 7 + i).remainder(20),
                   .position_ids = at::arange(kLength).expand({kRows, kLength})});
  }
  return all;
}

MemoryBudgetConfig budget_of(double bytes, std::int64_t host = 0) {
  return {.device = {.size = ByteSize{static_cast<std::int64_t>(bytes)}}, .host = {.bytes = host}};
}

// What the layers of each rank follow.
struct Followed {
  std::mutex mutex;
  std::multimap<std::string, std::vector<ActivationPlan>> plans;  // by the name of the rank's first layer
};

ActivationPlan plan_of(Module& layer) {
  if (layer.checkpoints_activations()) {
    const CheckpointOptions options = layer.checkpoint_options();
    return {.recompute = options.keeps_results ? Recompute::kAllButAttention : Recompute::kAll,
            .offloads = options.offloads};
  }
  bool recomputes_child = false;
  layer.for_each_module([&](const std::string&, Module& module) {
    recomputes_child = recomputes_child || module.checkpoints_activations();
  });
  return {.recompute = recomputes_child ? Recompute::kFeedForward : Recompute::kNothing};
}

class MemoryBudget : public ::testing::Test {
 protected:
  void SetUp() override { fs::remove_all(folder()); }
  void TearDown() override { fs::remove_all(folder()); }

  static PipelineJob wide_job(const DeviceMeshParameters& mesh = {}) {
    return {.mesh = mesh,
            .microbatches = wide_microbatches,
            .num_steps = 2,
            .dtype = at::kFloat,  // whose moments are measured by their size in float32
            .keeps_start = false};
  }

  // Returns how many layers of all ranks recompute something, and notes their plans.
  static std::int64_t num_recomputing(PipelineJob job, Trained& trained, Followed& followed) {
    job.on_trained = [&](Module& module) {
      std::vector<ActivationPlan> plans;
      for (Module* const unit : activation_units(module)) plans.push_back(plan_of(*unit));
      const std::lock_guard lock(followed.mutex);
      followed.plans.emplace(activation_units(module).front()->canonical_name(), plans);
    };
    trained = train(job);
    std::int64_t count = 0;
    for (const auto& [name, plans] : followed.plans) {
      count += std::ranges::count_if(plans, [](const ActivationPlan& plan) { return plan != ActivationPlan(); });
    }
    return count;
  }
};

// Each with a budget between what the job needs if layers keep everything, and if they keep their inputs.
TEST_F(MemoryBudget, Changes_no_bit_of_what_is_trained_and_is_kept) {
  const std::vector<std::pair<std::string, PipelineJob>> jobs = {
      {"one rank", wide_job()},
      {"experts",
       [] {
         PipelineJob job = wide_job();
         job.has_experts = true;
         return job;
       }()},
      {"pipeline",
       [] {
         PipelineJob job = wide_job({.pipeline_parallel = 2});
         job.schedule = OneFOneBScheduleConfig{};
         return job;
       }()},
      {"two stages a rank, split backward",
       [] {
         PipelineJob job = wide_job({.pipeline_parallel = 2});
         job.schedule = ZeroBubbleVScheduleConfig{};
         return job;
       }()},
      {"FSDP", wide_job({.data_parallel_shard = 2})},
      {"context", wide_job({.context_parallel_shard = 2})},
      {"tensor", wide_job({.tensor_parallel = 2})}};
  for (const auto& [name, job] : test::in_turn(jobs, 2)) {
    SCOPED_TRACE(name);
    const Trained plain = train(job);
    PipelineJob with = job;
    with.checkpoints = true;
    const Trained frugal = train(with);
    with.checkpoints = false;
    constexpr double kShare = 0.8;  // of what layers may keep
    const double budget =
        static_cast<double>(frugal.peak_bytes) + kShare * static_cast<double>(plain.peak_bytes - frugal.peak_bytes);
    with.memory_budget = budget_of(budget);
    Trained budgeted;
    Followed followed;
    const std::int64_t num_ranks = job.mesh.world_size(), num_stages = job.mesh.pipeline_parallel;
    const std::int64_t count = num_recomputing(with, budgeted, followed);
    EXPECT_GT(count, 0);
    std::int64_t num_frugal = 0;
    for (const auto& [layer, plans] : followed.plans) {
      num_frugal += std::ranges::count(plans, ActivationPlan{.recompute = Recompute::kAll});
    }
    EXPECT_LT(num_frugal, 8 * num_ranks / num_stages);
    EXPECT_EQ(std::ssize(followed.plans), num_ranks);
    expect_equal(budgeted, plain);
    EXPECT_LE(static_cast<double>(budgeted.peak_bytes), budget) << budgeted.log;
    EXPECT_GE(budgeted.peak_bytes, frugal.peak_bytes);
    EXPECT_THAT(budgeted.log,
                AllOf(HasSubstr("trainer.memory_budget: measured within"), HasSubstr("all_but_attention")));
  }
}

TEST_F(MemoryBudget, Of_less_memory_recomputes_more) {
  const Trained plain = train(wide_job());
  PipelineJob job = wide_job();
  job.checkpoints = true;
  const double least = static_cast<double>(train(job).peak_bytes), most = static_cast<double>(plain.peak_bytes);
  job.checkpoints = false;
  std::vector<std::int64_t> counts, peaks;
  for (const double share : {1.5, 0.8, 0.5, 0.25}) {
    job.memory_budget = budget_of(least + share * (most - least));
    Trained trained;
    Followed followed;
    counts.push_back(num_recomputing(job, trained, followed));
    peaks.push_back(trained.peak_bytes);
  }
  EXPECT_EQ(counts.front(), 0);
  EXPECT_TRUE(std::ranges::is_sorted(peaks, std::greater())) << ::testing::PrintToString(peaks);
  EXPECT_GT(counts.back(), 5);
}

// What the costs of plans add up to counts what the last layer keeps for the loss more than once, and gradients that a
// step of one microbatch makes only in backward. A pass with the plans does not.
TEST_F(MemoryBudget, Says_what_a_step_takes) {
  PipelineJob job = wide_job();
  for (const std::size_t num_microbatches : {1, 4}) {
    job.microbatches = [&](std::int64_t step) {
      std::vector<TokenBatch> all = wide_microbatches(step);
      all.resize(num_microbatches);
      return all;
    };
    const double most = static_cast<double>(train(job).peak_bytes);
    for (const double share : {0.6, 0.9}) {
      PipelineJob with = job;
      with.memory_budget = budget_of(share * most);
      const Trained trained = train(with);
      std::smatch said;
      ASSERT_TRUE(std::regex_search(trained.log, said, std::regex("takes ([0-9.]+) MiB of"))) << trained.log;
      const double peak = static_cast<double>(trained.peak_bytes) / (1 << 20);
      EXPECT_NEAR(std::stod(said[1]), peak, 0.02 * peak) << trained.log;
    }
  }
}

// Each rank measures other times, since they share the processor.
TEST_F(MemoryBudget, Gives_replicas_the_same_plans) {
  for (const DeviceMeshParameters& mesh : {DeviceMeshParameters{.data_parallel_replicate = 4},
                                           DeviceMeshParameters{.pipeline_parallel = 2, .tensor_parallel = 2}}) {
    PipelineJob job = wide_job(mesh);
    job.num_steps = 1;
    const double most = static_cast<double>(train(job).peak_bytes);
    job.memory_budget = budget_of(0.8 * most, /*host=*/1 << 30);
    Trained trained;
    Followed followed;
    (void)num_recomputing(job, trained, followed);
    for (auto each = followed.plans.begin(); each != followed.plans.end(); ++each) {
      EXPECT_EQ(each->second, followed.plans.find(each->first)->second) << each->first;
    }
  }
}

TEST_F(MemoryBudget, That_is_too_little_is_refused_on_all_ranks_before_the_first_step) {
  for (const DeviceMeshParameters& mesh :
       {DeviceMeshParameters{}, DeviceMeshParameters{.pipeline_parallel = 2, .data_parallel_shard = 2}}) {
    PipelineJob job = wide_job(mesh);
    job.memory_budget = budget_of(1000);
    std::atomic<int> num_steps = 0;
    job.on_updated = [&] { ++num_steps; };
    EXPECT_THAT(pipeline::error_of(job), AllOf(HasSubstr("expected trainer.memory_budget.device of at least "),
                                               HasSubstr("got 1000 B"), HasSubstr("data.microbatch_size")));
    EXPECT_EQ(num_steps, 0);
  }
}

// What costs add up to fits, by a few KiB less than a pass with these plans takes.
TEST_F(MemoryBudget, That_the_least_of_a_step_exceeds_is_refused) {
  PipelineJob job = wide_job();
  job.has_experts = true;
  job.checkpoints = true;
  const double least = static_cast<double>(train(job).peak_bytes);
  job.checkpoints = false;
  job.memory_budget = budget_of(least - 500);
  EXPECT_THAT(pipeline::error_of(job), HasSubstr("expected trainer.memory_budget.device of at least "));
}

TEST_F(MemoryBudget, Is_refused_where_it_cannot_be_followed) {
  PipelineJob job = wide_job();
  job.memory_budget = budget_of(1e9);
  job.checkpoints = true;
  EXPECT_THAT(pipeline::error_of(job), AllOf(HasSubstr("got trainer.memory_budget and activation checkpointing of "),
                                             HasSubstr("model_provider.checkpointing")));
  job.checkpoints = false;
  job.memory_budget->device.size.reset();
  EXPECT_THAT(pipeline::error_of(job), HasSubstr("expected a size of trainer.memory_budget.device on a CPU"));
  job.memory_budget = budget_of(1e9);
  job.mesh.pipeline_parallel = 2;
  job.schedule = AutoScheduleConfig{};
  EXPECT_THAT(pipeline::error_of(job), HasSubstr("expected a schedule by name with trainer.memory_budget"));
}

TEST_F(MemoryBudget, Of_a_job_that_continues_is_chosen_anew_and_changes_nothing) {
  PipelineJob job = wide_job();
  const Trained plain = train(job);
  job.memory_budget = budget_of(1e9);
  job.num_steps = 1;
  job.save_dir = "saves";
  (void)train(job);
  job.num_steps = 2;
  const Trained continued = train(job);
  EXPECT_THAT(continued.log, HasSubstr("trainer.memory_budget: measured"));
  for (const auto& [name, tensor] : plain.parameters) {
    EXPECT_TRUE(at::equal(continued.parameters.at(name), tensor)) << name;
  }
  EXPECT_THAT(train(job).log, Not(HasSubstr("trainer.memory_budget: measured")));  // no step is left
}

}  // namespace
}  // namespace d9d::test::memory_budget_test
