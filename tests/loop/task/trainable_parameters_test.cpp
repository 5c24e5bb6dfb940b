#include "d9d/loop/task/trainable_parameters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/blocks/linear/linear.h"
#include "d9d/loop/task/shard_over_data.h"

#include "tests/support/ranks.h"

namespace d9d::trainable_parameters_test {
namespace {

using ::testing::ElementsAre;

TEST(TrainableParameters, Are_what_a_rank_keeps_with_the_shape_of_the_whole) {
  test::run_ranks(test::RankBackend::kThreads, 2, [](World& world) {
    const DistContext context({.mesh = {.data_parallel_shard = 2}, .world = test::borrowed(world)});
    const auto linear = make_module<Linear>(LinearConfig{4, 6, true});
    linear->bias->set_requires_grad(false);
    shard_over_data(context, linear.shared(), {});
    linear->materialize(at::kCPU);
    linear->reset_parameters(3);
    const TrainableParameters trainable = trainable_parameters(*linear);
    ASSERT_EQ(trainable.parameters.size(), 1U);
    const NamedParameter& weight = trainable.parameters.front();
    EXPECT_EQ(weight.name, "weight");
    EXPECT_TRUE(weight.tensor.is_same(linear->weight->stored()));
    EXPECT_EQ(weight.tensor.dim(), 1);
    EXPECT_THAT(weight.global_shape, ElementsAre(6, 4));
    EXPECT_EQ(weight.mesh, context.mesh(MeshDomain::kDense));
    EXPECT_TRUE(has_flat_shard(weight.placements));
  });
}

}  // namespace
}  // namespace d9d::trainable_parameters_test
