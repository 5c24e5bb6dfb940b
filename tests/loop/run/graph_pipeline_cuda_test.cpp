// Stages whose computations are CUDA graphs must train bit for bit as stages without graphs, on one GPU where the
// stages pass tensors to each other. Memory is filled with NaN when it is allocated, also in replays, so that writes
// that are too early or reads that are too late become visible.
#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "d9d/core/autograd/checkpoint.h"

#include "tests/loop/run/pipeline_job.h"
#include "tests/support/gpu_test.h"

namespace d9d::test::graph_pipeline_cuda_test {
namespace {

using pipeline::expect_equal;
using pipeline::kNumMicrobatches;
using pipeline::PipelineJob;
using pipeline::Rows;
using pipeline::train;
using pipeline::Trained;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Must precede any backward of the program, as launch() ensures.
class InstallCheckpointEngine : public ::testing::Environment {
  void SetUp() override { install_checkpoint_engine(); }
};
const ::testing::Environment* const kInstallCheckpointEngine =
    ::testing::AddGlobalTestEnvironment(new InstallCheckpointEngine);

const std::vector<PipelineScheduleConfig> kSchedules = {
    OneFOneBScheduleConfig{.num_stages_per_rank = 2},
    OneFOneBScheduleConfig{.num_stages_per_rank = 4, .zero_bubble = true},
    LoopedBfsScheduleConfig{.num_stages_per_rank = 2}, ZeroBubbleVScheduleConfig{}, DualPipeVScheduleConfig{}};

class GraphPipelineCuda : public GpuTest {
 protected:
  // Lengths of microbatches differ within a step, and recur in each third step.
  static constexpr std::int64_t kNumKinds = 3, kNumReplayed = 3, kNumWarmUp = 2;

  void SetUp() override {
    GpuTest::SetUp();
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  }
  void TearDown() override { at::globalContext().setDeterministicAlgorithms(false, /*warn_only=*/false); }

  // Without the step that a loss asks for, which captured ones may not.
  static Trained trained_by(const PipelineJob& job) {
    Trained trained = train(job);
    for (nlohmann::json& line : trained.logged) line.erase("steps/last");
    return trained;
  }

  // Compares training with and without graphs for every schedule.
  static void expect_same_bits(PipelineJob job) {
    job.is_on_gpu = true;
    job.num_steps = kNumKinds * (kNumWarmUp + kNumReplayed);
    for (const PipelineScheduleConfig& schedule : kSchedules) {
      SCOPED_TRACE(schedule_of(schedule).name);
      job.schedule = schedule;
      job.has_graphs = false;
      const Trained expected = trained_by(job);
      job.has_graphs = true;
      const Trained actual = trained_by(job);
      expect_equal(actual, expected);
      EXPECT_EQ(actual.graph_counts.eager, kNumKinds * kNumWarmUp * kNumMicrobatches);
      EXPECT_EQ(actual.graph_counts.replays, kNumKinds * kNumReplayed * kNumMicrobatches);
    }
  }

  static std::string error_with(const std::function<void(LossResult&)>& on_loss) {
    return pipeline::error_of({.schedule = ZeroBubbleVScheduleConfig{},
                               .num_steps = kNumKinds * (kNumWarmUp + 1),
                               .is_on_gpu = true,
                               .has_graphs = true,
                               .on_loss = on_loss});
  }
};

TEST_F(GraphPipelineCuda, Of_a_dense_model_train_as_without) { expect_same_bits({}); }

TEST_F(GraphPipelineCuda, Of_experts_with_their_statistics_train_as_without) {
  expect_same_bits({.has_experts = true, .dtype = at::kBFloat16});
}

TEST_F(GraphPipelineCuda, Of_checkpointed_layers_and_a_tied_head_train_as_without) {
  expect_same_bits({.checkpoints = true, .ties_embeddings = true});
}

TEST_F(GraphPipelineCuda, With_frozen_layers_and_buckets_train_as_without) {
  expect_same_bits({.freezes_first = true, .dtype = at::kBFloat16, .gradient_dtype = Dtype::kFloat32});
}

TEST_F(GraphPipelineCuda, With_adapters_train_as_without) {
  const LoraParams params{.r = 8, .alpha = 4.0};  // without dropout, which a recorded step refuses
  expect_same_bits({.has_experts = true, .adapters = LoraConfig{".*_proj", params}, .dtype = at::kBFloat16});
  expect_same_bits({.adapters = LoraConfig{".*_proj", params}});
  expect_same_bits({.adapters = DoraConfig{".*_proj", params}});
}

TEST_F(GraphPipelineCuda, Have_a_graph_for_each_computation) {
  PipelineJob job{.schedule = ZeroBubbleVScheduleConfig{}, .num_steps = 7, .is_on_gpu = true, .has_graphs = true};
  const Trained trained = train(job);  // step 7 is the third of its kind
  const auto program = build_compute_program(schedule_of(job.schedule), /*num_ranks=*/1, kNumMicrobatches);
  std::int64_t num_computations = 0;
  for (const Action& action : program.ranks.front()) num_computations += std::ssize(compute_parts(action));
  EXPECT_EQ(trained.graph_counts.graphs, num_computations);
}

TEST_F(GraphPipelineCuda, Say_that_a_task_waits_for_the_device) {
  const std::string error = error_with([](LossResult& result) { (void)result.loss.item<double>(); });
  EXPECT_THAT(error, AllOf(HasSubstr("[loop::cuda_graph] expected forward, loss and backward"),
                           HasSubstr("reads a value of it")));
}

}  // namespace
}  // namespace d9d::test::graph_pipeline_cuda_test
