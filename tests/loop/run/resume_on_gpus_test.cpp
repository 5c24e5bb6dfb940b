// Jobs of processes with one GPU each, over NCCL, continue on another mesh: parameters and moments begin bit for bit as
// they were saved, and the steps are those of an uninterrupted job on one rank. Without a GPU, the same over threads.
#include <algorithm>
#include <filesystem>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "d9d/core/autograd/checkpoint.h"

#include "tests/loop/run/pipeline_job.h"
#include "tests/support/gpu_ranks.h"

namespace d9d::test::resume_on_gpus_test {
namespace {

namespace fs = std::filesystem;
using pipeline::folder;
using pipeline::PipelineJob;
using pipeline::series_of;
using pipeline::train;
using pipeline::Trained;

constexpr std::int64_t kSaved = 3;
constexpr std::int64_t kSteps = 5;

// Must precede any backward of the program, as launch() ensures.
class InstallCheckpointEngine : public ::testing::Environment {
  void SetUp() override { install_checkpoint_engine(); }
};
const ::testing::Environment* const kInstallCheckpointEngine =
    ::testing::AddGlobalTestEnvironment(new InstallCheckpointEngine);

struct Layout {
  DeviceMeshParameters mesh = {};
  PipelineScheduleConfig schedule = {};
  bool has_experts = false;
};

struct Move {
  RankBackend backend = RankBackend::kNccl;
  Layout from, to;
};

std::ostream& operator<<(std::ostream& out, const Move& move) {
  return out << to_string(move.backend) << " from " << move.from.mesh.world_size() << " to "
             << move.to.mesh.world_size() << " ranks";
}

std::vector<Move> moves_of(RankBackend backend) {
  const Layout one{}, shards{.mesh = {.data_parallel_shard = 2}}, replicas{.mesh = {.data_parallel_replicate = 2}},
      tensors{.mesh = {.tensor_parallel = 2}}, sequences{.mesh = {.context_parallel_shard = 2}},
      stages{.mesh = {.pipeline_parallel = 2}, .schedule = OneFOneBScheduleConfig{.zero_bubble = true}},
      v{.mesh = {.pipeline_parallel = 2}, .schedule = ZeroBubbleVScheduleConfig{}},
      stages_of_shards{.mesh = {.pipeline_parallel = 2, .data_parallel_shard = 2},
                       .schedule = DualPipeVScheduleConfig{}},
      tensors_of_replicas{.mesh = {.data_parallel_replicate = 2, .tensor_parallel = 2}},
      experts{.mesh = {.data_parallel_shard = 2, .expert_parallel = 2}, .has_experts = true},
      stages_of_experts{.mesh = {.pipeline_parallel = 2}, .schedule = OneFOneBScheduleConfig{}, .has_experts = true};
  return {{backend, shards, v},
          {backend, stages, tensors},
          {backend, tensors, sequences},
          {backend, replicas, one},
          {backend, experts, stages_of_experts},
          {backend, stages_of_shards, tensors_of_replicas}};
}

class ResumesOn : public ::testing::TestWithParam<Move> {
 protected:
  void SetUp() override {
    if (GetParam().backend != RankBackend::kNccl) return;
    const std::int64_t num = std::max(GetParam().from.mesh.world_size(), GetParam().to.mesh.world_size());
    if (!has_gpus(num)) GTEST_SKIP() << "needs " << num << " GPUs";
  }
  static PipelineJob on(const Layout& layout) {
    return {.mesh = layout.mesh,
            .schedule = layout.schedule,
            .has_experts = layout.has_experts,
            .num_steps = kSteps,
            .save_dir = "saved",
            .save_period = kSaved,
            .backend = GetParam().backend};
  }
};

TEST_P(ResumesOn, Another_mesh_bit_for_bit) {
  if (!is_gpu_rank()) fs::remove_all(folder());
  (void)train(on(GetParam().from));
  if (!is_gpu_rank()) fs::remove_all(folder() / "saved" / cat("save-", kSteps));
  PipelineJob job = on(GetParam().to);
  job.begins_as = cat("saved/save-", kSaved);
  const auto actual = series_of(train(job));
  if (is_gpu_rank()) return;
  Trained whole = train({.has_experts = job.has_experts, .num_steps = kSteps});
  std::erase_if(whole.logged, [](const nlohmann::json& line) { return line.value("step", kSteps) < kSaved; });
  for (const auto& [name, expected] : series_of(whole)) {
    ASSERT_TRUE(actual.contains(name)) << name;
    ASSERT_EQ(actual.at(name).size(), expected.size()) << name;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_NEAR(actual.at(name)[i], expected[i], tolerance("fp64").value * std::abs(expected[i])) << name;
    }
  }
  fs::remove_all(folder());
}

INSTANTIATE_TEST_SUITE_P(Threads, ResumesOn, ::testing::Values(moves_of(RankBackend::kThreads)[0]));
INSTANTIATE_TEST_SUITE_P(Nccl, ResumesOn, ::testing::ValuesIn(moves_of(RankBackend::kNccl)));

}  // namespace
}  // namespace d9d::test::resume_on_gpus_test
