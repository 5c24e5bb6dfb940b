// Runs small jobs and returns what they log and throw as one text.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/loop/task/shard_over_data.h"
#include "d9d/optim/adamw.h"

#include "tests/loop/run/toy_job.h"
#include "tests/support/ranks.h"

namespace d9d::toy {

enum class Layout { kReplicas, kShards };

struct ShardingProvider : Provider {
  void parallelize_model_stage(const DistContext& context, const PipelineStageInfo&, Module&) override {
    shard_over_data(context, model.shared(), {model->first.shared(), model->second.shared()});
  }
};

// Returns what a job on two ranks logs and throws. Each rank has its own task, and `change` prepares its job.
// export_to: a folder; empty: no export.
template <class OwnTask = Task>
std::string log_of_ranks(const std::function<void(Job& job, std::int64_t rank)>& change,
                         Layout layout = Layout::kReplicas, const std::filesystem::path& export_to = {}) {
  ::testing::internal::CaptureStderr();
  std::string thrown;
  try {
    test::run_ranks(test::RankBackend::kThreads, 2, [&](World& world) {
      const bool shards = layout == Layout::kShards;
      const DistContext context(
          {.mesh = {.data_parallel_replicate = shards ? 1 : 2, .data_parallel_shard = shards ? 2 : 1},
           .world = test::borrowed(world)});
      Job job({{samples(4 * world.rank(), 2)}, {samples(4 * world.rank() + 2, 2)}});
      job.config.logging.tracker = NullTrackerConfig{};
      job.optimizer = std::make_shared<AutoOptimizerProvider>(AdamWConfig{.lr = 0.1});
      change(job, world.rank());
      ShardingProvider sharding;
      sharding.packs = job.provider.packs;
      sharding.make_model = job.provider.make_model;
      OwnTask task;
      Trainer<Types> trainer(context, job.config,
                             {.task = task,
                              .model = shards ? sharding : job.provider,
                              .data = job.provider,
                              .optimizer = *job.optimizer,
                              .lr_scheduler = job.lr_scheduler});
      (void)trainer.train();
      if (!export_to.empty()) trainer.export_to(export_to);
    });
  } catch (const Error& error) {
    thrown = error.what();
  }
  return ::testing::internal::GetCapturedStderr() + thrown;
}

inline std::string log_of(const std::function<void(Job&)>& change) {
  Job job({{samples(0, 2), samples(2, 2)}, {samples(4, 2)}});
  job.optimizer = std::make_shared<AutoOptimizerProvider>(AdamWConfig{.lr = 0.1});
  change(job);
  ::testing::internal::CaptureStderr();
  std::string thrown;
  try {
    job.train();
  } catch (const std::exception& error) {
    thrown = error.what();
  }
  return ::testing::internal::GetCapturedStderr() + thrown;
}

}  // namespace d9d::toy
