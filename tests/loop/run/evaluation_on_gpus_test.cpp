// Evaluation of jobs on GPUs: it leaves no trace in training, whether microbatches are launched or replayed as CUDA
// graphs, and ranks over NCCL evaluate as one rank does.
#include <ostream>
#include <vector>

#include <gtest/gtest.h>

#include "d9d/core/autograd/checkpoint.h"

#include "tests/loop/run/pipeline_job.h"
#include "tests/support/gpu_ranks.h"
#include "tests/support/gpu_test.h"

namespace d9d::test::evaluation_on_gpus_test {
namespace {

using pipeline::PipelineJob;
using pipeline::train;

const std::vector<std::int64_t> kPacks = {5, 1, 3};

// Must precede any backward of the program, as launch() ensures.
class InstallCheckpointEngine : public ::testing::Environment {
  void SetUp() override { install_checkpoint_engine(); }
};
const ::testing::Environment* const kInstallCheckpointEngine =
    ::testing::AddGlobalTestEnvironment(new InstallCheckpointEngine);

class EvaluationCuda : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  }
  void TearDown() override { at::globalContext().setDeterministicAlgorithms(false, /*warn_only=*/false); }

  static void expect_no_trace(PipelineJob job) {
    job.is_on_gpu = true;
    job.num_steps = 12;  // three kinds of microbatches are captured and replayed
    const auto alone = train(job);
    job.evaluated = kPacks;
    const auto evaluated = train(job);
    pipeline::expect_equal(pipeline::without_evaluation(evaluated), alone);
    EXPECT_EQ(evaluated.graph_counts.replays, alone.graph_counts.replays);
    EXPECT_EQ(evaluated.graph_counts.replays > 0, job.has_graphs);
  }
};

TEST_F(EvaluationCuda, Leaves_no_trace_in_training) {
  expect_no_trace({});
  expect_no_trace({.has_experts = true});
}

TEST_F(EvaluationCuda, Leaves_no_trace_between_replays_of_graphs) {
  expect_no_trace({.has_graphs = true});
  expect_no_trace({.schedule = ZeroBubbleVScheduleConfig{}, .has_graphs = true});
}

struct Layout {
  PipelineJob job;
};
std::ostream& operator<<(std::ostream& out, const Layout& layout) {
  return out << to_string(layout.job.backend) << " on " << layout.job.mesh.world_size() << " ranks";
}

class EvaluatesOn : public ::testing::TestWithParam<Layout> {
 protected:
  void SetUp() override {
    if (GetParam().job.backend == RankBackend::kNccl && !has_gpus(GetParam().job.mesh.world_size())) {
      GTEST_SKIP() << "needs " << GetParam().job.mesh.world_size() << " GPUs";
    }
  }
};

TEST_P(EvaluatesOn, Ranks_as_on_one) {
  PipelineJob job = GetParam().job;
  job.evaluated = kPacks;
  const auto actual = train(job);
  if (is_gpu_rank()) return;
  pipeline::expect_same_series(
      actual, train({.has_experts = job.has_experts, .ties_embeddings = job.ties_embeddings, .evaluated = kPacks}));
}

std::vector<Layout> jobs_on(RankBackend backend) {
  const FsdpConfig once{.reshard_after_forward = ReshardAfterForward::kNever, .reduce_on_last_microbatch = true};
  return {{{.mesh = {.data_parallel_shard = 2}, .backend = backend}},
          {{.mesh = {.data_parallel_shard = 2}, .fsdp = once, .backend = backend}},
          {{.mesh = {.pipeline_parallel = 2},
            .schedule = DualPipeVScheduleConfig{},
            .ties_embeddings = true,
            .backend = backend}},
          {{.mesh = {.tensor_parallel = 2}, .backend = backend}},
          {{.mesh = {.data_parallel_shard = 2, .expert_parallel = 2}, .has_experts = true, .backend = backend}}};
}

INSTANTIATE_TEST_SUITE_P(Threads, EvaluatesOn, ::testing::Values(jobs_on(RankBackend::kThreads)[0]));
INSTANTIATE_TEST_SUITE_P(Nccl, EvaluatesOn, ::testing::ValuesIn(jobs_on(RankBackend::kNccl)));

}  // namespace
}  // namespace d9d::test::evaluation_on_gpus_test
