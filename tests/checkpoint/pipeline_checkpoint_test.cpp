// Checkpoints of jobs whose ranks hold different tensors: the stages of a pipeline.
#include <fstream>
#include <functional>
#include <mutex>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/checkpoint/checkpoint_directory.h"
#include "d9d/core/dtensor/redistribute.h"

#include "tests/support/ranks.h"

namespace d9d::test::pipeline_checkpoint_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::int64_t kNumLayers = 8;
constexpr std::int64_t kLayerBytes = 6 * 4 * 8 + 8;
constexpr std::int64_t kTiedBytes = 5 * 4 * 4;

// Layers over stages, each stage over the ranks of "a"; V stages, where rank r has the stages r and 2 P - 1 - r.
struct Cut {
  std::int64_t num_pipeline_ranks = 1;
  std::int64_t num_data_ranks = 1;
  bool is_v = false;
  bool shards = false;
  [[nodiscard]] std::int64_t num_ranks() const { return num_pipeline_ranks * num_data_ranks; }
  [[nodiscard]] bool has_layer(std::int64_t rank, std::int64_t layer) const {
    const std::int64_t num_stages = num_pipeline_ranks * (is_v ? 2 : 1);
    const std::int64_t stage = layer * num_stages / kNumLayers;
    return rank == stage || (is_v && rank == num_stages - 1 - stage);
  }
};

const std::vector<Cut>& cuts() {
  static const std::vector<Cut> all = {{},
                                       {.num_data_ranks = 3, .shards = true},
                                       {.num_pipeline_ranks = 2},
                                       {.num_pipeline_ranks = 4},
                                       {.num_pipeline_ranks = 2, .num_data_ranks = 2},
                                       {.num_pipeline_ranks = 2, .num_data_ranks = 2, .shards = true},
                                       {.num_pipeline_ranks = 4, .is_v = true},
                                       {.num_pipeline_ranks = 2, .num_data_ranks = 3, .is_v = true, .shards = true}};
  return all;
}

// What this rank holds: its layers, each with a count, and on the first and the last layer's ranks the tied embedding.
CheckpointState state_on(const DeviceMesh& job, const Cut& cut, double first) {
  CheckpointState state;
  const Placements placements = {Replicate{}, cut.shards ? Placement(Shard{0}) : Placement(Replicate{})};
  const auto add = [&](const std::string& name, const at::Tensor& whole) {
    DTensor part = distribute(whole, job, placements);
    part.local = part.local.clone();
    state.tensors.emplace(name, part);
  };
  const std::int64_t rank = job.axis_coordinate("pp");
  for (std::int64_t layer = 0; layer < kNumLayers; ++layer) {
    if (!cut.has_layer(rank, layer)) continue;
    const double base = first + 100 * static_cast<double>(layer);
    add(cat("layers.", layer), at::arange(24, at::kDouble).view({6, 4}).add(base));
    state.tensors.emplace(cat("layers.", layer, ".step"), whole_dtensor(at::full({}, static_cast<std::int64_t>(base))));
  }
  if (cut.has_layer(rank, 0) || cut.has_layer(rank, kNumLayers - 1)) {
    add("tied", at::arange(20, at::kFloat).view({5, 4}).add(first));
  }
  return state;
}

void on_ranks(const Cut& cut, const std::function<void(const DeviceMesh&)>& body) {
  run_ranks(RankBackend::kThreads, cut.num_ranks(), [&](World& world) {
    body(DeviceMesh("job", {{"pp", cut.num_pipeline_ranks}, {"a", cut.num_data_ranks}}, borrowed(world)));
  });
}

class PipelineCheckpoint : public ::testing::Test {
 protected:
  void SetUp() override { fs::remove_all(folder_); }
  void TearDown() override { fs::remove_all(folder_); }

  void save(const Cut& cut, double first) const {
    on_ranks(cut, [&](const DeviceMesh& job) {
      CheckpointDirectory(folder_, job).save(static_cast<std::int64_t>(first), state_on(job, cut, first), {});
    });
  }
  // Of each rank, what saving or loading throws after `change`.
  std::vector<std::string> errors_of(const Cut& cut,
                                     const std::function<void(const DeviceMesh& job, CheckpointState& state)>& change,
                                     bool loads) const {
    std::vector<std::string> errors(static_cast<std::size_t>(cut.num_ranks()));
    on_ranks(cut, [&](const DeviceMesh& job) {
      CheckpointState state = state_on(job, cut, 9);
      change(job, state);
      const CheckpointDirectory directory(folder_, job);
      try {
        if (loads) {
          directory.newest().value().load(state, job);
        } else {
          directory.save(9, state, {});
        }
      } catch (const Error& error) {
        errors[static_cast<std::size_t>(job.index())] = error.what();
      }
    });
    return errors;
  }

  const fs::path folder_ =
      fs::path(::testing::TempDir()) / cat("d9d_", ::testing::UnitTest::GetInstance()->current_test_info()->name());
};

TEST_F(PipelineCheckpoint, Of_any_cut_loads_into_any_other_bit_for_bit) {
  double first = 0;
  for (const Cut& from : cuts()) {
    save(from, ++first);
    for (const Cut& to : cuts()) {
      on_ranks(to, [&](const DeviceMesh& job) {
        const CheckpointState state = state_on(job, to, -7), expected = state_on(job, to, first);
        CheckpointDirectory(folder_, job).newest().value().load(state, job);
        for (const auto& [name, tensor] : expected.tensors) {
          EXPECT_TRUE(at::equal(state.tensors.at(name).local, tensor.local)) << name;
        }
      });
    }
  }
}

TEST_F(PipelineCheckpoint, Holds_every_element_once_and_each_rank_of_a_stage_writes_its_share) {
  for (const Cut& cut : cuts()) {
    fs::remove_all(folder_);
    save(cut, 1);
    std::int64_t written = 0, largest = 0;
    for (const auto& entry : fs::directory_iterator(folder_ / "save-1")) {
      if (entry.path().extension() != ".safetensors") continue;
      std::ifstream file(entry.path(), std::ios::binary);
      std::uint64_t header = 0;
      file.read(reinterpret_cast<char*>(&header), sizeof header);
      const auto bytes = static_cast<std::int64_t>(entry.file_size() - sizeof header - header);
      written += bytes;
      largest = std::max(largest, bytes);
    }
    EXPECT_EQ(written, kNumLayers * kLayerBytes + kTiedBytes) << cut.num_ranks() << " ranks";
    EXPECT_LE(largest, kNumLayers * kLayerBytes / cut.num_ranks() + kLayerBytes + kTiedBytes) << cut.num_ranks();
  }
}

TEST_F(PipelineCheckpoint, Of_a_tensor_that_no_rank_has_is_refused_on_all_ranks) {
  save({.num_pipeline_ranks = 2}, 1);
  const auto errors = errors_of(
      {.num_pipeline_ranks = 4}, [](const DeviceMesh&, CheckpointState& state) { state.tensors.erase("layers.5"); },
      /*loads=*/true);
  for (const std::string& error : errors) EXPECT_THAT(error, HasSubstr("it has also layers.5. Continue"));
}

TEST_F(PipelineCheckpoint, Of_stages_that_disagree_is_refused_on_all_ranks_and_the_one_before_stays) {
  save({.num_pipeline_ranks = 2}, 1);
  const Cut cut{.num_pipeline_ranks = 2, .num_data_ranks = 2};
  const auto other_shape = [](const DeviceMesh& job, CheckpointState& state) {
    if (job.axis_coordinate("pp") == 1) state.tensors.at("tied") = whole_dtensor(at::ones({7}));
  };
  const auto other_names = [](const DeviceMesh& job, CheckpointState& state) {
    if (job.index() == 3) state.tensors.erase("layers.5");
  };
  for (const bool loads : {false, true}) {
    for (const std::string& error : errors_of(cut, other_shape, loads)) {
      EXPECT_THAT(error, HasSubstr("tied as Float [5, 4] on rank 0 and Float [7] on rank 2"));
    }
    for (const std::string& error : errors_of(cut, other_names, loads)) {
      EXPECT_THAT(error, HasSubstr("layers.5 as Double [6, 4] on rank 2 and none on rank 3"));
    }
  }
  EXPECT_FALSE(fs::exists(folder_ / "save-9"));
  EXPECT_FALSE(fs::exists(folder_ / "save-9.tmp"));
  EXPECT_EQ(checkpoint_at(folder_).value().step(), 1);
}

TEST_F(PipelineCheckpoint, Changes_nothing_before_all_ranks_know_that_it_fits) {
  save({.num_pipeline_ranks = 2}, 1);
  on_ranks({.num_pipeline_ranks = 4}, [&](const DeviceMesh& job) {
    CheckpointState state = state_on(job, {.num_pipeline_ranks = 4}, 9);
    const CheckpointState before = state_on(job, {.num_pipeline_ranks = 4}, 9);
    if (job.index() == 3) state.tensors.emplace("more", whole_dtensor(at::ones({2})));
    EXPECT_THROW((void)CheckpointDirectory(folder_, job).newest().value().load(state, job), StateError);
    for (const auto& [name, tensor] : before.tensors) {
      EXPECT_TRUE(at::equal(state.tensors.at(name).local, tensor.local)) << name;
    }
  });
}

}  // namespace
}  // namespace d9d::test::pipeline_checkpoint_test
