#include "d9d/loop/step/loss_scales.h"

#include <cmath>
#include <limits>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"

#include "tests/support/ranks.h"

namespace d9d::test::loss_scales_test {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

at::Tensor scalar(double value) { return at::scalar_tensor(value, at::kDouble); }

DistContext one_rank() { return DistContext({.world = lone_rank(0, 1)}); }

TEST(LossScales, Are_each_weight_over_its_mean_over_all_microbatches_and_ranks) {
  // Weights of the step: tokens 1, 2, 3, 4 and sequences 0, 1, 1, 0.
  run_ranks(RankBackend::kThreads, 2, [](World& world) {
    const DistContext context({.mesh = {.data_parallel_replicate = 2}, .world = borrowed(world)});
    const double rank = static_cast<double>(context.rank());
    const std::vector<LossScales> shares = loss_scales(
        context, {{{"tokens", scalar(1 + 2 * rank)}, {"sequences", scalar(rank)}},
                  {{"tokens", scalar(2 + 2 * rank)}, {"sequences", at::full({}, 1 - context.rank(), at::kLong)}}});
    ASSERT_EQ(shares.size(), 2U);
    EXPECT_DOUBLE_EQ(shares[0].of.at("tokens").item<double>(), 4 * (1 + 2 * rank) / 10);
    EXPECT_DOUBLE_EQ(shares[1].of.at("tokens").item<double>(), 4 * (2 + 2 * rank) / 10);
    EXPECT_DOUBLE_EQ(shares[0].of.at("sequences").item<double>(), 4 * rank / 2);
    EXPECT_EQ(shares[1].weight.item<double>(), 1);
  });
}

TEST(LossScales, Of_a_loss_without_weight_are_zero_and_of_a_step_without_any_count_nothing) {
  const auto weights = [](double tokens) { return LossWeights{{"sequences", scalar(0)}, {"tokens", scalar(tokens)}}; };
  const LossScales some = loss_scales(one_rank(), {weights(3)}).at(0);
  EXPECT_EQ(some.of.at("sequences").item<double>(), 0);
  EXPECT_EQ(some.of.at("tokens").item<double>(), 1);
  EXPECT_EQ(some.weight.item<double>(), 1);
  EXPECT_EQ(loss_scales(one_rank(), {weights(0)}).at(0).weight.item<double>(), 0);
  EXPECT_EQ(loss_scales(one_rank(), {weights(-1)}).at(0).weight.item<double>(),
            -std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(loss_scales(one_rank(), {weights(std::nan(""))}).at(0).weight.item<double>()));
}

TEST(LossScales, Of_one_loss_are_empty) {
  const std::vector<LossScales> shares = loss_scales(one_rank(), {{}, {}});
  ASSERT_EQ(shares.size(), 2U);
  EXPECT_TRUE(shares[0].of.empty());
  EXPECT_FALSE(shares[0].weight.defined());
}

TEST(LossScales, Refuse_names_that_change_and_what_is_no_scalar) {
  EXPECT_THAT(
      [&] {
        (void)loss_scales(one_rank(), {{{"a", scalar(1)}}, {{"b", scalar(1)}}});
      },
      ThrowsMessage<StateError>(HasSubstr("loss_weights of the same names for all microbatches")));
  EXPECT_THAT(
      [&] {
        (void)loss_scales(one_rank(), {{{"a", at::ones({2})}}});
      },
      ThrowsMessage<StateError>(HasSubstr("a real scalar as loss_weights[\"a\"], got Float of shape [2]")));
}

}  // namespace
}  // namespace d9d::test::loss_scales_test
