#include "d9d/testing/layouts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/loop/run/trainer.h"
#include "d9d/loop/task/shard_over_data.h"

#include "tests/loop/run/toy_job.h"

namespace d9d::layouts_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

struct ShardedProvider : toy::Provider {
  void parallelize_model_stage(const DistContext& context, const PipelineStageInfo&, Module&) override {
    shard_over_data(context, model.shared(), {model->first.shared(), model->second.shared()});
  }
};

struct RecordingTask : toy::Task {
  void register_events(const DistContext&, EventBus& events) override {
    events.subscribe(kTrainStepPost, [this](const FinishedStep& step) { losses.push_back(step.loss); });
  }
  std::vector<double> losses;
};

// Three steps of eight samples, in microbatches of two, which are dealt to the ranks. `strays`: rank 1 reads samples of
// another step.
testing::Trained train(const DistContext& context, bool strays) {
  toy::Job job({});
  RecordingTask task;
  ShardedProvider provider;
  for (std::int64_t step = 0; step < 3; ++step) {
    std::vector<toy::Batch> pack;
    for (std::int64_t first = 2 * context.rank(); first < 8; first += 2 * context.world_size()) {
      pack.push_back(toy::samples(8 * step + first + (strays && context.rank() == 1 ? 1 : 0), 2));
    }
    provider.packs.push_back(std::move(pack));
  }
  job.config.schedule.total_steps = 3;
  job.config.logging.tracker = NullTrackerConfig{};
  Trainer<toy::Types> trainer(context, job.config,
                              {.task = task,
                               .model = provider,
                               .data = provider,
                               .optimizer = *job.optimizer,
                               .lr_scheduler = job.lr_scheduler});
  trainer.train();
  return {.losses = task.losses, .parameters = trainer.module().full_state_dict()};
}

TEST(Layouts, Of_a_right_program_do_not_differ) {
  const auto program = [](const DistContext& context) { return train(context, /*strays=*/false); };
  EXPECT_EQ(testing::layout_difference({.data_parallel_shard = 2}, program), "");
  EXPECT_EQ(testing::layout_difference({.data_parallel_replicate = 2, .data_parallel_shard = 2}, program,
                                       {.ranks = {.backend = testing::RankBackend::kGloo}}),
            "");
}

TEST(Layouts, Of_a_program_that_reads_other_samples_differ_by_name) {
  const auto program = [](const DistContext& context) { return train(context, /*strays=*/true); };
  EXPECT_THAT(testing::layout_difference({.data_parallel_replicate = 2}, program),
              AllOf(HasSubstr("losses: differs by "), HasSubstr("\nfirst.weight: differs by ")));
}

TEST(Layouts, Name_what_is_missing_or_has_another_shape) {
  const auto program = [](const DistContext& context) {
    testing::Trained result{.losses = {1.0}, .parameters = {{"same", at::ones({2})}}};
    if (context.world_size() == 1) result.parameters = {{"same", at::ones({2})}, {"gone", at::ones({2})}};
    if (context.world_size() == 2) result.losses.push_back(std::nan(""));
    return result;
  };
  EXPECT_THAT(
      testing::layout_difference({.data_parallel_replicate = 2}, program),
      AllOf(HasSubstr("losses: shape [2], on one rank [1]"), HasSubstr("gone: missing"), Not(HasSubstr("same"))));
}

}  // namespace
}  // namespace d9d::layouts_test
