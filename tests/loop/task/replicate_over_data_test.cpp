#include "d9d/loop/task/replicate_over_data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/blocks/linear/linear.h"

#include "tests/support/ranks.h"

namespace d9d::replicate_over_data_test {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using ::testing::VariantWith;

void replicate(const DeviceMeshParameters& mesh, Module& module) {
  const DistContext context({.mesh = mesh, .world = test::lone_rank(0, mesh.world_size())});
  replicate_over_data(context, module);
}

TEST(ReplicateOverData, Sums_gradients_over_the_ranks_with_other_data) {
  const auto linear = make_module<Linear>(LinearConfig{2, 3, true});
  replicate({.data_parallel_replicate = 6}, *linear);
  for (const auto& [name, parameter] : linear->named_parameters()) {
    EXPECT_THAT(parameter->placements(), Each(VariantWith<Replicate>(Replicate{})));
    EXPECT_THAT(parameter->gradient_placements(), Contains(VariantWith<Partial>(Partial{ReduceOp::kSum})).Times(3));
  }
}

TEST(ReplicateOverData, Refuses_degrees_that_cut_a_model_or_its_sequences) {
  const auto linear = make_module<Linear>(LinearConfig{2, 3, true});
  EXPECT_THAT(
      [&] { replicate({.tensor_parallel = 2}, *linear); },
      ThrowsMessage<ConfigError>("[loop::model_provider] mesh.tensor_parallel = 2, but this model provider divides the "
                                 "data and not its model. Override parallelize_model_stage, or set it to 1."));
  EXPECT_THAT([&] { replicate({.context_parallel_shard = 2}, *linear); },
              ThrowsMessage<ConfigError>(HasSubstr("mesh.context_parallel_shard = 2")));
  EXPECT_THAT([&] { replicate({.data_parallel_shard = 2, .expert_parallel = 2}, *linear); },
              ThrowsMessage<ConfigError>(HasSubstr("mesh.expert_parallel = 2")));
  EXPECT_THAT([&] { replicate({.data_parallel_shard = 2}, *linear); },
              ThrowsMessage<ConfigError>(HasSubstr("shard_over_data()")));
}

}  // namespace
}  // namespace d9d::replicate_over_data_test
