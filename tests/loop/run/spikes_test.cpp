// Steps whose loss or gradient norm is far above those before change nothing, on all ranks alike.
#include <cmath>
#include <filesystem>
#include <mutex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/loop/run/toy_job.h"
#include "tests/support/ranks.h"

namespace d9d::spikes_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr std::int64_t kSteps = 8;
constexpr std::size_t kSpike = 5;

// The same samples in each step, in another order, so that losses fall smoothly.
std::vector<std::vector<toy::Batch>> packs(std::int64_t rank = 0) {
  std::vector<std::vector<toy::Batch>> packs;
  for (std::int64_t step = 0; step < kSteps; ++step) {
    toy::Batch batch = toy::samples(3 * rank, 3);
    for (at::Tensor* each : {&batch.x, &batch.y, &batch.weights}) *each = each->roll(step, 0);
    packs.push_back({batch});
  }
  return packs;
}

struct Job : toy::Job {
  explicit Job(std::int64_t rank = 0) : toy::Job(packs(rank)) {
    descent->steps->reserve(kSteps);
    optimizer = slow;
    config.gradient_clipping.spikes = SpikeConfig{.num_deviations = 6, .window_steps = 4};
    config.refuse_equal_data = false;
  }
  void spoil(std::size_t step, double factor = 100) { provider.packs[step][0].y.mul_(factor); }

  // Small steps, so that the losses of a window are close.
  struct Slow : toy::DescentProvider {
    Optimizer build_optimizer(const DistContext& context, const TrainableParameters& trainable) override {
      (void)context;
      std::vector<at::Tensor> parameters;
      for (const NamedParameter& parameter : trainable.parameters) parameters.push_back(parameter.tensor);
      return Optimizer(toy::Descent{.base_learning_rate = 0.01, .parameters = parameters, .steps = steps});
    }
  };
  const std::shared_ptr<Slow> slow = std::make_shared<Slow>();
};

std::vector<std::int64_t> skipped_steps() {
  std::vector<std::int64_t> skipped;
  std::int64_t before = 0;
  for (const auto& line : toy::Job::logged()) {
    const auto count = line.at("skipped_steps").get<std::int64_t>();
    if (count > before) skipped.push_back(line.at("step"));
    before = count;
  }
  return skipped;
}

TEST(Spikes, Change_nothing_and_are_counted) {
  Job job;
  job.spoil(kSpike);
  EXPECT_EQ(job.train(), TrainingOutcome::kFinished);
  EXPECT_THAT(skipped_steps(), ElementsAre(kSpike));
  EXPECT_EQ(job.slow->steps->size(), kSteps - 1) << "the optimiser made no step";
}

TEST(Spikes, Are_none_without_the_setting_or_before_half_of_the_window) {
  Job off;
  off.spoil(kSpike);
  off.config.gradient_clipping.spikes.reset();
  off.train();
  EXPECT_THAT(skipped_steps(), ElementsAre());
  Job early;
  early.spoil(1);
  early.train();
  EXPECT_THAT(skipped_steps(), ElementsAre()) << "one step is known by then";
}

TEST(Spikes, Are_as_far_from_the_mean_as_is_configured) {
  for (const double num_deviations : {6.0, 1e9}) {
    Job job;
    job.spoil(kSpike);
    job.config.gradient_clipping.spikes->num_deviations = num_deviations;
    job.train();
    EXPECT_EQ(skipped_steps().size(), num_deviations == 6.0 ? 1U : 0U);
  }
}

TEST(Spikes, That_last_end_the_job_after_half_of_the_window) {
  Job job;
  for (const std::size_t step : {5, 6, 7}) job.spoil(step);
  EXPECT_THAT([&] { job.train(); }, ThrowsMessage<StateError>(HasSubstr("within 2 steps")));
}

TEST(Spikes, Stop_the_job_if_asked) {
  Job job;
  job.spoil(kSpike);
  job.config.gradient_clipping.spikes->on_spike = NonFinitePolicy::kStop;
  EXPECT_THAT([&] { job.train(); },
              ThrowsMessage<StateError>(AllOf(HasSubstr("no spike in step 5"), HasSubstr("limits"))));
}

TEST(Spikes, Of_one_rank_leave_out_the_same_step_on_all) {
  for (const double factor : {100.0, std::nan("")}) {
    std::mutex mutex;
    std::vector<std::vector<at::Tensor>> parameters;
    test::run_ranks(test::RankBackend::kThreads, 4, [&](World& world) {
      const DistContext context({.mesh = {.data_parallel_replicate = 4}, .world = test::borrowed(world)});
      Job job(world.rank());
      job.config.gradient_clipping.on_non_finite = NonFinitePolicy::kSkip;
      if (world.rank() == 2) job.spoil(kSpike, factor);
      Trainer<toy::Types> trainer = job.make_trainer(context, job.task);
      EXPECT_EQ(trainer.train(), TrainingOutcome::kFinished);
      EXPECT_EQ(job.slow->steps->size(), kSteps - 1);
      std::vector<at::Tensor> own;
      for (const auto& [name, tensor] : trainer.module().state_dict()) own.push_back(tensor.clone());
      const std::lock_guard lock(mutex);
      parameters.push_back(own);
    });
    EXPECT_THAT(skipped_steps(), ElementsAre(kSpike)) << factor;
    for (const auto& of_rank : parameters) {
      for (std::size_t i = 0; i < of_rank.size(); ++i) EXPECT_TRUE(at::equal(of_rank[i], parameters[0][i]));
    }
  }
}

TEST(Spikes, Of_a_resumed_job_are_those_of_an_undisturbed_one) {
  const fs::path folder = fs::path(::testing::TempDir()) / "d9d_spikes";
  fs::remove_all(folder);
  for (const bool stops : {true, false}) {
    Job job;
    job.spoil(kSpike);
    job.config.checkpointing = {.save_dir = folder, .period_steps = {EverySteps{4}}};
    if (stops) job.config.schedule.total_steps = 4;
    job.train();
  }
  EXPECT_THAT(skipped_steps(), ElementsAre(kSpike)) << "the window of steps 2 and 3 was saved";
  fs::remove_all(folder);
}

TEST(Spikes, In_a_row_end_the_job_at_the_limit) {
  Job job;
  for (const std::size_t step : {4, 5, 6, 7}) job.spoil(step);
  job.config.gradient_clipping.max_skipped_in_a_row = 3;
  EXPECT_THAT([&] { job.train(); },
              ThrowsMessage<StateError>(AllOf(HasSubstr("within 3 steps"), HasSubstr("a spike: loss"))));
  Job apart;
  for (const std::size_t step : {4, 6}) apart.spoil(step);
  apart.config.gradient_clipping.max_skipped_in_a_row = 2;
  EXPECT_EQ(apart.train(), TrainingOutcome::kFinished);
  EXPECT_THAT(skipped_steps(), ElementsAre(4, 6));
}

}  // namespace
}  // namespace d9d::spikes_test
