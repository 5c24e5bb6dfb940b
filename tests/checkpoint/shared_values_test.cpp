#include "d9d/checkpoint/shared_values.h"

#include <filesystem>
#include <functional>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/checkpoint/checkpoint_directory.h"

#include "tests/support/ranks.h"

namespace d9d::test::shared_values_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::int64_t kStages = 2, kReplicas = 2;

// What saving says over two pipeline stages of two replicas; `state`: of each rank.
std::string said(const std::function<CheckpointState(const DeviceMesh& job)>& state) {
  const fs::path folder = fs::path(::testing::TempDir()) / "d9d_shared_values";
  fs::remove_all(folder);
  std::string text;
  try {
    run_ranks(RankBackend::kThreads, kStages * kReplicas, [&](World& world) {
      const DeviceMesh job("batch", {{"pp", kStages}, {"dp", kReplicas}}, borrowed(world));
      const CheckpointDirectory directory(folder, job);
      (void)directory.prepare();
      directory.save(1, state(job), {});
    });
  } catch (const Error& error) {
    text = error.what();
  }
  EXPECT_EQ(fs::exists(folder / "save-1"), text.empty());
  fs::remove_all(folder);
  return text;
}

// Of a stage, whole on each of its replicas: a number of rows that is no multiple of words and columns.
DTensor replicated(const DeviceMesh& job, const at::Tensor& values) {
  return {
      .local = values, .mesh = job.slice({"dp"}), .placements = {Replicate{}}, .global_shape = values.sizes().vec()};
}

at::Tensor waves(at::ScalarType dtype, std::int64_t numel) { return at::sin(at::arange(numel, at::kDouble)).to(dtype); }

bool is_last(const DeviceMesh& job) { return job.index() + 1 == job.num_ranks(); }

std::string stage_of(const DeviceMesh& job) { return cat("layers.", job.axis_coordinate("pp"), ".weight"); }

TEST(SharedValues, That_are_equal_make_a_checkpoint) {
  EXPECT_EQ(said([](const DeviceMesh& job) {
              return CheckpointState{.tensors = {{stage_of(job), replicated(job, waves(at::kFloat, 3001))},
                                                 {"steps", whole_dtensor(at::full({}, 7))}},
                                     .values = {{"data", 3}},
                                     .equal_values = {{"data", {.rule = "one position", .remedy = ""}}}};
            }),
            "");
}

// What the first rank says of two ranks that hold `one` and `other`.
std::string said_of(const at::Tensor& one, const at::Tensor& other) {
  std::vector<RankNote> notes;
  for (const at::Tensor& values : {one, other}) {
    const CheckpointState state{.tensors = {{"weight", whole_dtensor(values)}}, .copies = {{"weight", values}}};
    const JobTensors all = {{"weight", {.dtype = "", .shape = values.sizes().vec(), .pipeline_ranks = {0}}}};
    const DeviceMesh alone("job", {{"a", 1}}, lone_rank(0, 1));
    notes.push_back(
        {.boxes = {}, .values = {}, .shared = SharedValues(state, all, alone, SideStream(at::kCPU)).wait()});
  }
  try {
    check_shared_values(notes);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(SharedValues, That_one_element_makes_different_are_refused_with_two_ranks) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kChar, at::kBool, at::kComplexFloat}) {
    for (const std::int64_t numel : {1, 3, 2048, 3001, 5000}) {
      for (const std::int64_t changed : {std::int64_t{0}, numel / 2, numel - 1}) {
        const at::Tensor values = waves(dtype, numel), others = values.clone();
        EXPECT_EQ(said_of(values, others), "");
        others[changed].copy_(dtype == at::kBool ? others[changed].logical_not() : others[changed] + 1);
        EXPECT_THAT(said_of(values, others),
                    AllOf(HasSubstr(cat("expected equal values of weight[0:", numel, "] on all ranks")),
                          HasSubstr("got others on rank 0"), HasSubstr("and on rank 1")))
            << dtype << " " << numel << " " << changed;
      }
    }
  }
}

TEST(SharedValues, Of_views_at_odd_places_are_those_of_their_elements) {
  const at::Tensor values = waves(at::kBFloat16, 700);
  for (const std::int64_t odd : {1, 2, 3, 4, 5}) {
    const at::Tensor longer = at::cat({at::full({odd}, 5.0, at::kBFloat16), values});
    EXPECT_EQ(said_of(values, longer.narrow(0, odd, 700)), "");
  }
}

TEST(SharedValues, That_change_places_are_refused) {
  EXPECT_THAT(
      said([](const DeviceMesh& job) {
        const at::Tensor values = waves(at::kDouble, 3000);
        return CheckpointState{.tensors = {{stage_of(job), replicated(job, is_last(job) ? values.flip({0}) : values)}}};
      }),
      HasSubstr("expected equal values of layers.1.weight"));
}

TEST(SharedValues, Whose_rows_change_places_are_refused) {
  for (const std::int64_t row : {64, 256, 512, 4096}) {
    const at::Tensor values = waves(at::kDouble, 8 * row).view({8, row});
    EXPECT_THAT(said_of(values, values.flip({0})), HasSubstr("expected equal values of weight[0:8")) << row;
    EXPECT_THAT(said_of(values, values.roll({1}, {0})), HasSubstr("expected equal values of weight[0:8")) << row;
  }
}

TEST(SharedValues, Without_a_layout_are_compared_on_all_ranks_that_have_them) {
  EXPECT_THAT(
      said([](const DeviceMesh& job) {
        return CheckpointState{.tensors = {{"optimizer.steps", whole_dtensor(at::full({}, is_last(job) ? 8 : 7))}}};
      }),
      HasSubstr("expected equal values of optimizer.steps on all ranks that have it, because a checkpoint "
                "or an export stores one of them, got others on rank 0"));
  EXPECT_THAT(said([](const DeviceMesh& job) {
                return CheckpointState{.tensors = {{"model.mean", whole_dtensor(at::full({2}, job.index()))}},
                                       .buffers = {"model.mean"}};
              }),
              AllOf(HasSubstr("model.mean[0:2]"), HasSubstr("Average it over ranks in on_step_finished()")));
}

TEST(SharedValues, That_ranks_have_parts_of_are_theirs) {
  EXPECT_EQ(said([](const DeviceMesh& job) {
              return CheckpointState{.tensors = {{stage_of(job),
                                                  {.local = at::full({2}, job.index()),
                                                   .mesh = job.slice({"dp"}),
                                                   .placements = {Shard{0}},
                                                   .global_shape = {4}}}}};
            }),
            "");
}

TEST(SharedValues, That_a_rank_has_twice_are_compared) {
  EXPECT_THAT(said([](const DeviceMesh& job) {
                return CheckpointState{.tensors = {{"table", whole_dtensor(at::ones({3}))}},
                                       .copies = {{"table", at::full({3}, is_last(job) ? 2.0 : 1.0, at::kFloat)}}};
              }),
              HasSubstr("expected equal values of table[0:3]"));
}

TEST(SharedValues, Beside_the_tensors_are_refused_with_both_values) {
  EXPECT_THAT(said([](const DeviceMesh& job) {
                return CheckpointState{
                    .tensors = {},
                    .values = {{"data", is_last(job) ? 4 : 3}, {"tracker", job.index()}},
                    .equal_values = {{"data", {.rule = "one position on all ranks", .remedy = "Count alike."}}}};
              }),
              HasSubstr("expected one position on all ranks, got 3 on rank 0 and 4 on rank 3. Count alike."));
}

}  // namespace
}  // namespace d9d::test::shared_values_test
