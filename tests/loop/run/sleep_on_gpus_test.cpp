// Jobs on GPUs sleep and wake: nothing of it remains in training, and memory comes back.
#include <ostream>
#include <vector>

#include <gtest/gtest.h>

#include "d9d/core/autograd/checkpoint.h"

#include "tests/loop/run/pipeline_job.h"
#include "tests/support/gpu_ranks.h"
#include "tests/support/gpu_test.h"

namespace d9d::test::sleep_on_gpus_test {
namespace {

using pipeline::PipelineJob;
using pipeline::train;

const SleepTags kBoth = {SleepTag::kTensorStates, SleepTag::kComms};

// Must precede any backward of the program, as launch() ensures.
class InstallCheckpointEngine : public ::testing::Environment {
  void SetUp() override { install_checkpoint_engine(); }
};
const ::testing::Environment* const kInstallCheckpointEngine =
    ::testing::AddGlobalTestEnvironment(new InstallCheckpointEngine);

class SleepCuda : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  }
  void TearDown() override { at::globalContext().setDeterministicAlgorithms(false, /*warn_only=*/false); }

  static void expect_that_sleep_changes_nothing(PipelineJob job) {
    job.is_on_gpu = true;
    job.num_steps = 10;
    const auto awake = train(job);
    job.sleeps = kBoth;
    pipeline::expect_equal(train(job), awake);
  }
};

TEST_F(SleepCuda, Changes_no_bit) {
  expect_that_sleep_changes_nothing({.evaluated = {2}});
  expect_that_sleep_changes_nothing({.evaluated = {2}, .ema = AveragedWeightsConfig{.average = {.decay = 0.9}}});
  expect_that_sleep_changes_nothing({.has_experts = true});
  expect_that_sleep_changes_nothing({.schedule = ZeroBubbleVScheduleConfig{}});
}

// A job with graphs rounds as one without.
TEST_F(SleepCuda, Captures_graphs_anew) { expect_that_sleep_changes_nothing({.has_graphs = true}); }

struct Layout {
  PipelineJob job;
};
std::ostream& operator<<(std::ostream& out, const Layout& layout) {
  return out << to_string(layout.job.backend) << " on " << layout.job.mesh.world_size() << " ranks";
}

class SleepsOn : public ::testing::TestWithParam<Layout> {
 protected:
  void SetUp() override {
    if (!has_gpus(GetParam().job.mesh.world_size())) {
      GTEST_SKIP() << "needs " << GetParam().job.mesh.world_size() << " GPUs";
    }
  }
};

TEST_P(SleepsOn, Ranks_as_on_one) {
  PipelineJob job = GetParam().job;
  job.backend = RankBackend::kNccl;
  job.sleeps = kBoth;
  const auto actual = train(job);
  if (is_gpu_rank()) return;
  pipeline::expect_same_series(actual, train({.has_experts = job.has_experts, .ties_embeddings = job.ties_embeddings}));
}

INSTANTIATE_TEST_SUITE_P(
    Nccl, SleepsOn,
    ::testing::Values(
        Layout{{.mesh = {.data_parallel_shard = 2}}},
        Layout{{.mesh = {.data_parallel_shard = 2},
                .fsdp = {.reshard_after_forward = ReshardAfterForward::kNever, .reduce_on_last_microbatch = true}}},
        Layout{{.mesh = {.pipeline_parallel = 2}, .schedule = DualPipeVScheduleConfig{}, .ties_embeddings = true}},
        Layout{{.mesh = {.tensor_parallel = 2}}},
        Layout{{.mesh = {.data_parallel_shard = 2, .expert_parallel = 2}, .has_experts = true}}));

}  // namespace
}  // namespace d9d::test::sleep_on_gpus_test
