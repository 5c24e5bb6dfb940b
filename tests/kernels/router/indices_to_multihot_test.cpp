#include "d9d/kernels/moe_permute/indices_to_multihot.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"

#include "tests/kernels/op_testing.h"

namespace d9d::kernels::indices_to_multihot_test {
namespace {

using ::d9d::testing::backward;
using ::d9d::testing::leaf;

TEST(IndicesToMultihot, Marks_choices_that_live_here_and_carries_their_probabilities) {
  const auto indices = at::tensor({2, 0, -1, 1, 3, 2}, at::kLong).view({3, 2});
  const auto probs = at::tensor({0.1, 0.2, 0.3, 0.4, 0.5, 0.6}, at::kFloat).view({3, 2});
  const auto choices = indices_to_multihot(indices, probs, 3);
  EXPECT_TRUE(at::equal(choices.mask, at::tensor({1, 0, 1, 0, 1, 0, 0, 0, 1}).view({3, 3}).to(at::kBool)));
  EXPECT_TRUE(at::equal(choices.probs, at::tensor({0.2, 0., 0.1, 0., 0.4, 0., 0., 0., 0.6}, at::kFloat).view({3, 3})));
}

TEST(IndicesToMultihot, Gives_each_choice_that_lives_here_its_gradient_and_zero_to_others) {
  const auto indices = at::tensor({2, 0, -1, 1, 3, 2}, at::kLong).view({3, 2});
  const auto probs = leaf(at::zeros({3, 2}, at::kDouble));
  const auto choices = indices_to_multihot(indices, probs, 3);
  EXPECT_FALSE(choices.mask.requires_grad());
  backward({choices.probs}, {at::arange(1, 10, at::kDouble).view({3, 3})});
  EXPECT_TRUE(at::equal(probs.grad(), at::tensor({3., 1., 0., 5., 0., 9.}, at::kDouble).view({3, 2})));
}

TEST(IndicesToMultihot, May_be_empty) {
  const auto choices = indices_to_multihot(at::empty({0, 2}, at::kLong), at::empty({0, 2}), 3);
  EXPECT_EQ(choices.mask.sizes(), (at::IntArrayRef{0, 3}));
  EXPECT_EQ(choices.probs.sizes(), (at::IntArrayRef{0, 3}));
}

TEST(IndicesToMultihot, Rejects_indices_and_probabilities_of_different_shapes) {
  EXPECT_THROW((void)indices_to_multihot(at::zeros({2, 2}, at::kLong), at::zeros({2, 3}), 3), ConfigError);
}

}  // namespace
}  // namespace d9d::kernels::indices_to_multihot_test
