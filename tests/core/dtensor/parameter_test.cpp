#include "d9d/core/dtensor/parameter.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"

namespace d9d {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(Parameter, Has_no_storage_before_materialize) {
  Parameter weight({.shape = {2, 3}, .init = init::ones()});
  EXPECT_TRUE(weight.local().is_meta());
  EXPECT_TRUE(weight.requires_grad());
  weight.to(at::kDouble);
  weight.materialize(at::kCPU);
  EXPECT_FALSE(weight.is_initialized());
  weight.reset({});
  EXPECT_TRUE(weight.is_initialized());
  EXPECT_TRUE(at::equal(weight.local(), at::ones({2, 3}, at::kDouble)));
  EXPECT_TRUE(weight.requires_grad());
}

TEST(Parameter, Keeps_its_layout_over_axes_of_one_rank) {
  Parameter weight({.shape = {2}, .init = init::zeros()});
  weight.distribute(DeviceMesh({{"dp_shard", 1}}, {0}), {Replicate{}}, {Partial{}});
  EXPECT_EQ(weight.placements(), (Placements{Replicate{}}));
  EXPECT_EQ(weight.gradient_placements(), (Placements{Partial{ReduceOp::kSum}}));
}

TEST(Parameter, Refuses_layouts_that_are_not_built_by_name) {
  Parameter weight({.shape = {2}, .init = init::zeros()});
  const auto shard_over_two = [&] { weight.distribute(DeviceMesh({{"tp", 2}}, {0}), {Shard{0}}, {Shard{0}}); };
  EXPECT_THAT(shard_over_two, ThrowsMessage<ConfigError>(HasSubstr("axis 'tp' has 2 ranks")));
}

TEST(Parameter, Names_both_shapes_when_values_do_not_fit) {
  Parameter weight({.shape = {2, 3}, .init = init::zeros()});
  weight.materialize(at::kCPU);
  EXPECT_THAT([&] { weight.copy_from(at::zeros({3, 2})); }, ThrowsMessage<StateError>(HasSubstr("[2, 3], got [3, 2]")));
}

TEST(Parameter, Stays_the_same_leaf_when_converted) {
  Parameter weight({.shape = {2}, .init = init::ones()});
  weight.materialize(at::kCPU);
  weight.reset({});
  const at::Tensor held = weight.local();
  (held * held).sum().backward();
  weight.to(at::kDouble);
  EXPECT_EQ(held.scalar_type(), at::kDouble);
  EXPECT_FALSE(held.grad().defined());
  (weight.local() * 3).sum().backward();
  EXPECT_TRUE(at::equal(held.grad(), at::full({2}, 3, at::kDouble)));
}

TEST(Parameter, Takes_a_leaf_from_elsewhere_only_if_it_fits) {
  Parameter weight({.shape = {2}, .init = init::zeros()});
  weight.materialize(at::kCPU);
  const at::Tensor leaf = at::ones({2});
  weight.replace_local(leaf);
  EXPECT_TRUE(weight.local().is_same(leaf));
  EXPECT_TRUE(leaf.requires_grad());
  EXPECT_FALSE(weight.is_initialized());
  EXPECT_THAT([&] { weight.replace_local(at::ones({2}, at::kDouble)); },
              ThrowsMessage<StateError>(HasSubstr("expected a leaf of Float, got Double")));
}

TEST(Parameter, Frozen_parameters_stay_frozen) {
  Parameter weight({.shape = {2}, .init = init::zeros()});
  weight.set_requires_grad(false);
  weight.to(at::kBFloat16);
  weight.materialize(at::kCPU);
  EXPECT_FALSE(weight.requires_grad());
}

}  // namespace
}  // namespace d9d
