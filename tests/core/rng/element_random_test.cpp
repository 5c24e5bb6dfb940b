#include "d9d/core/rng/element_random.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace d9d::element_random_test {
namespace {

TEST(ElementRandom, A_shard_holds_the_elements_of_the_whole) {
  const RandomStream stream{.key = 42};
  const at::Tensor whole = at::empty({6, 5, 4}, at::kDouble);
  fill_normal(whole, whole_window(whole), stream, 0.0, 1.0);
  const at::Tensor shard = at::empty({2, 5, 3}, at::kDouble);
  fill_normal(shard, {.global_shape = {6, 5, 4}, .start = {3, 0, 1}}, stream, 0.0, 1.0);
  EXPECT_TRUE(at::equal(shard, whole.narrow(0, 3, 2).narrow(2, 1, 3)));
}

TEST(ElementRandom, Float32_is_the_rounded_float64) {
  const at::Tensor wide = at::empty({1000}, at::kDouble);
  const at::Tensor narrow = at::empty({1000}, at::kFloat);
  fill_uniform(wide, whole_window(wide), {.key = 7}, -1.0, 1.0);
  fill_uniform(narrow, whole_window(narrow), {.key = 7}, -1.0, 1.0);
  EXPECT_TRUE(at::equal(wide.to(at::kFloat), narrow));
}

TEST(ElementRandom, Moments_are_those_of_the_distribution) {
  const at::Tensor values = at::empty({200000}, at::kDouble);
  fill_normal(values, whole_window(values), {.key = 3}, 2.0, 0.5);
  EXPECT_NEAR(values.mean().item<double>(), 2.0, 5e-3);
  EXPECT_NEAR(values.std().item<double>(), 0.5, 5e-3);
  fill_uniform(values, whole_window(values), {.key = 3}, -1.0, 3.0);
  EXPECT_NEAR(values.mean().item<double>(), 1.0, 1e-2);
  EXPECT_GE(values.min().item<double>(), -1.0);
  EXPECT_LT(values.max().item<double>(), 3.0);
}

TEST(ElementRandom, Steps_and_keys_give_other_numbers) {
  const auto draw = [](RandomStream stream) {
    const at::Tensor values = at::empty({8}, at::kDouble);
    fill_uniform(values, whole_window(values), stream, 0.0, 1.0);
    return values;
  };
  EXPECT_FALSE(at::equal(draw({.key = 1, .step = 0}), draw({.key = 1, .step = 1})));
  EXPECT_FALSE(at::equal(draw({.key = 1}), draw({.key = 2})));
}

TEST(ElementRandom, Masks_keep_the_asked_share) {
  const at::Tensor mask = at::empty({100000}, at::kBool);
  fill_bernoulli(mask, whole_window(mask), {.key = 5}, 0.9);
  EXPECT_NEAR(mask.to(at::kDouble).mean().item<double>(), 0.9, 5e-3);
}

TEST(ElementRandom, Scalars_and_empty_tensors_are_legal) {
  const at::Tensor scalar = at::zeros({}, at::kFloat);
  fill_uniform(scalar, whole_window(scalar), {.key = 1}, 1.0, 2.0);
  EXPECT_GE(scalar.item<float>(), 1.0F);
  const at::Tensor empty = at::empty({0, 4}, at::kFloat);
  EXPECT_NO_THROW(fill_uniform(empty, whole_window(empty), {.key = 1}, 0.0, 1.0));
}

}  // namespace
}  // namespace d9d::element_random_test
