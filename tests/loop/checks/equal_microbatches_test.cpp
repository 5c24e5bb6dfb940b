#include "d9d/loop/checks/equal_microbatches.h"

#include <array>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/loop/task/shard_over_data.h"
#include "d9d/parallelism/replicate/parallelize_replicate.h"

#include "tests/loop/run/toy_job.h"
#include "tests/support/ranks.h"

namespace d9d::test::equal_microbatches_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Numbers = std::vector<std::int64_t>;  // by rank

// Returns the error of check() in the steps of a job, whose numbers tell_next() gets from `told`. Without shards the
// model is replicated, as a custom provider may do on any mesh; the default provider rejects meshes that split more
// than the data.
std::string said(const DeviceMeshParameters& mesh, const std::vector<Numbers>& steps,
                 const std::vector<Numbers>& told = {}, bool shards = true) {
  try {
    run_ranks(RankBackend::kThreads, mesh.world_size(), [&](World& world) {
      const DistContext context({.mesh = mesh, .world = borrowed(world)});
      const auto model = make_module<toy::Model>();
      if (shards && mesh.data_parallel_shard > 1) {
        shard_over_data(context, model.shared(), {model->first.shared(), model->second.shared()});
      } else {
        parallelize_replicate(*model, context.mesh(MeshDomain::kDense), dense_data_axes());
      }
      model->materialize(at::kCPU);
      EqualMicrobatches equal(context, *model);
      for (std::size_t step = 0; step < steps.size(); ++step) {
        equal.check(static_cast<std::int64_t>(step), steps[step][static_cast<std::size_t>(world.rank())]);
        if (step < told.size()) equal.tell_next(told[step]);
      }
    });
  } catch (const StateError& error) {
    return error.what();
  }
  return "";
}

TEST(EqualMicrobatches, May_be_of_any_number_on_replicas) {
  EXPECT_EQ(said({.data_parallel_replicate = 2}, {{3, 2}, {1, 4}}, {{1, 4}}), "");
  EXPECT_EQ(said({.data_parallel_shard = 2}, {{3, 2}}, {}, /*shards=*/false), "") << "parameters are whole";
}

TEST(EqualMicrobatches, Are_refused_on_ranks_that_share_parameters) {
  EXPECT_THAT(said({.data_parallel_shard = 2}, {{3, 2}}),
              AllOf(HasSubstr("expected as many microbatches on all ranks that hold parts of first.weight"),
                    HasSubstr("got 3 on rank 0 and 2 on rank 1 in step 0")));
  EXPECT_EQ(said({.data_parallel_replicate = 2, .data_parallel_shard = 2}, {{3, 3, 2, 2}}), "");
  EXPECT_THAT(said({.data_parallel_replicate = 2, .data_parallel_shard = 2}, {{3, 3, 2, 1}}),
              HasSubstr("got 2 on rank 2 and 1 on rank 3"));
}

TEST(EqualMicrobatches, Are_refused_on_ranks_that_share_microbatches) {
  for (const DeviceMeshParameters& mesh :
       {DeviceMeshParameters{.pipeline_parallel = 2}, DeviceMeshParameters{.context_parallel_shard = 2},
        DeviceMeshParameters{.tensor_parallel = 2}}) {
    EXPECT_THAT(
        said(mesh, {{3, 3}, {3, 2}}, {}, /*shards=*/false),
        AllOf(HasSubstr("compute each microbatch together"), HasSubstr("got 3 on rank 0 and 2 on rank 1 in step 1")));
  }
}

TEST(EqualMicrobatches, Of_a_step_that_was_told_are_compared_without_communication) {
  EXPECT_THAT(said({.data_parallel_shard = 2}, {{3, 3}, {2, 2}, {4, 4}}, {{2, 2}, {4, 5}}),
              HasSubstr("got 4 on rank 0 and 5 on rank 1 in step 2"));
  EXPECT_EQ(said({.data_parallel_shard = 2}, {{3, 3}, {2, 2}}, {{0, 2}}), "") << "0: not known, so it is gathered";
  EXPECT_THAT(said({.data_parallel_shard = 2}, {{3, 3}, {2, 3}}, {{0, 3}}), HasSubstr("in step 1"));
}

TEST(EqualMicrobatches, Are_at_least_one) {
  EXPECT_THAT(said({.data_parallel_replicate = 2}, {{1, 1}, {1, 0}}, {{1, 0}}),
              HasSubstr("expected a microbatch on every rank in step 1, got none on rank 1"));
}

}  // namespace
}  // namespace d9d::test::equal_microbatches_test
