#include "d9d/checkpoint/job_tensors.h"

#include <functional>
#include <mutex>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"

#include "tests/support/ranks.h"

namespace d9d::test::job_tensors_test {
namespace {

using ::testing::ElementsAre;
using Tensors = std::map<std::string, DTensor>;

// Two stages of two ranks each. Both have "shared", and the one at `stage` "of_<stage>".
Tensors tensors_of_stage(std::int64_t stage) {
  return {{"shared", whole_dtensor(at::ones({3}, at::kDouble))},
          {cat("of_", stage), whole_dtensor(at::ones({2, stage + 1}))}};
}

// What job_tensors() gives on each rank; its error where it throws one.
struct Answers {
  std::vector<JobTensors> all = std::vector<JobTensors>(4);
  std::vector<std::string> errors = std::vector<std::string>(4);
};

// "pp" is the outer axis or the inner one.
Answers ask(bool is_outer, const std::function<void(std::int64_t rank, Tensors&)>& change) {
  Answers answers;
  run_ranks(RankBackend::kThreads, 4, [&](World& world) {
    const MeshAxis pipeline{"pp", 2}, data{"dp", 2};
    const DeviceMesh job("job", is_outer ? std::vector{pipeline, data} : std::vector{data, pipeline}, borrowed(world));
    Tensors own = tensors_of_stage(job.axis_coordinate("pp"));
    change(world.rank(), own);
    const auto rank = static_cast<std::size_t>(world.rank());
    try {
      answers.all[rank] = job_tensors(own, job);
    } catch (const StateError& error) {
      answers.errors[rank] = error.what();
    }
  });
  return answers;
}

TEST(JobTensors, Are_what_the_stages_of_a_pipeline_have_together) {
  for (const bool is_outer : {true, false}) {
    const Answers answers = ask(is_outer, [](std::int64_t, Tensors&) {});
    for (const JobTensors& all : answers.all) {
      ASSERT_EQ(all.size(), 3U);
      EXPECT_THAT(all.at("shared").pipeline_ranks, ElementsAre(0, 1));
      EXPECT_EQ(all.at("shared").dtype, "Double");
      EXPECT_THAT(all.at("of_0").pipeline_ranks, ElementsAre(0));
      EXPECT_THAT(all.at("of_1").pipeline_ranks, ElementsAre(1));
      EXPECT_THAT(all.at("of_1").shape, ElementsAre(2, 2));
    }
  }
}

TEST(JobTensors, Of_stages_that_have_the_same_are_of_all) {
  const Answers answers = ask(true, [](std::int64_t, Tensors& own) { own = {{"x", whole_dtensor(at::ones({}))}}; });
  for (const JobTensors& all : answers.all) EXPECT_THAT(all.at("x").pipeline_ranks, ElementsAre(0, 1));
}

// All ranks throw the same.
void expect_refused(const std::string& text, bool is_outer, const std::function<void(std::int64_t, Tensors&)>& change) {
  for (const std::string& error : ask(is_outer, change).errors) EXPECT_THAT(error, ::testing::HasSubstr(text));
}

TEST(JobTensors, Of_ranks_of_one_stage_that_differ_are_refused) {
  expect_refused("on all ranks, got of_1 as Float [2, 2] on rank 2 and none on rank 3. Give", true,
                 [](std::int64_t rank, Tensors& own) {
                   if (rank == 3) own.erase("of_1");
                 });
  expect_refused("on all ranks, got more as none on rank 1 and Float [] on rank 3. Give", false,
                 [](std::int64_t rank, Tensors& own) {
                   if (rank == 3) own.emplace("more", whole_dtensor(at::ones({})));
                 });
  expect_refused("on all ranks, got shared as Double [3] on rank 0 and Float [3] on rank 1. Give", true,
                 [](std::int64_t rank, Tensors& own) {
                   if (rank == 1) own.at("shared") = whole_dtensor(at::ones({3}));
                 });
}

TEST(JobTensors, Of_stages_that_have_one_name_for_different_tensors_are_refused) {
  const auto shape_of_second = [](bool is_outer) {
    return [is_outer](std::int64_t rank, Tensors& own) {
      const bool is_second = is_outer ? rank >= 2 : rank % 2 == 1;
      if (is_second) own.at("shared") = whole_dtensor(at::ones({4}, at::kDouble));
    };
  };
  expect_refused("on all ranks that have them, got shared as Double [3] on rank 0 and Double [4] on rank 2. Give", true,
                 shape_of_second(true));
  expect_refused("on all ranks that have them, got shared as Double [3] on rank 0 and Double [4] on rank 1. Give",
                 false, shape_of_second(false));
}

TEST(JobTensors, Of_a_mesh_without_an_axis_of_stages_are_the_same_on_all_ranks) {
  run_ranks(RankBackend::kThreads, 2, [&](World& world) {
    const DeviceMesh job("job", {{"a", 2}}, borrowed(world));
    EXPECT_THAT(job_tensors(tensors_of_stage(0), job).at("shared").pipeline_ranks, ElementsAre(0));
    EXPECT_THROW((void)job_tensors(tensors_of_stage(world.rank()), job), StateError);
  });
}

}  // namespace
}  // namespace d9d::test::job_tensors_test
