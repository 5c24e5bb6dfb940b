#include "d9d/core/dtensor/parameter.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/core/communicator/thread/thread_job.h"

#include "tests/support/ranks.h"

namespace d9d::parameter_test {
namespace {

using test::lone_rank;
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
  weight.place(DeviceMesh("m", {{"dp_shard", 1}}, one_rank_world()), "dp_shard", Replicate{}, Partial{});
  EXPECT_EQ(weight.placements(), (Placements{Replicate{}}));
  EXPECT_EQ(weight.gradient_placements(), (Placements{Partial{ReduceOp::kSum}}));
}

// The mesh of one rank out of `size`; nothing is communicated.
DeviceMesh mesh_of(std::int64_t rank, std::vector<MeshAxis> axes) {
  std::int64_t size = 1;
  for (const MeshAxis& axis : axes) size *= axis.size;
  return {"m", std::move(axes), lone_rank(rank, size)};
}

at::Tensor whole_values(const std::vector<std::int64_t>& shape) {
  Parameter whole({.shape = shape, .init = init::normal(1.0)});
  whole.materialize(at::kCPU);
  whole.reset({.key = 5});
  return whole.local().detach();
}

TEST(Parameter, Has_the_same_numbers_in_any_layout) {
  const at::Tensor whole = whole_values({7, 3, 5});
  for (std::int64_t rank = 0; rank < 6; ++rank) {
    Parameter part({.shape = {7, 3, 5}, .init = init::normal(1.0)});
    const DeviceMesh mesh = mesh_of(rank, {{"a", 3}, {"b", 2}});
    part.place(mesh, "a", Shard{0}, Shard{0});
    part.place(mesh, "b", Shard{2}, Shard{2});
    part.materialize(at::kCPU);
    part.reset({.key = 5});
    const at::Tensor expected = whole.chunk(3, 0)[rank / 2].chunk(2, 2)[rank % 2];
    EXPECT_TRUE(at::equal(part.local(), expected)) << rank;
  }
}

TEST(Parameter, Has_the_same_numbers_in_a_flat_group) {
  const at::Tensor whole = whole_values({4, 3, 5});
  for (std::int64_t rank = 0; rank < 8; ++rank) {
    Parameter part({.shape = {4, 3, 5}, .init = init::normal(1.0)});
    const DeviceMesh mesh = mesh_of(rank, {{"tp", 2}, {"dp", 4}});
    part.place(mesh, "tp", Shard{1}, Shard{1});
    const FlatShard flat{.padded_numel = 64, .offset_in_unit = 9};
    part.place(mesh, "dp", flat, flat);
    part.materialize(at::kCPU);
    const at::Tensor box = whole.chunk(2, 1)[rank / 4].reshape({-1});
    const FlatRange range = flat_range(box.numel(), mesh, part.placements());
    part.attach_flat(at::empty({4, rank / 4 == 0 ? 2 : 1, 5}), at::empty({range.numel()}));
    part.reset({.key = 5});
    EXPECT_TRUE(at::equal(part.stored(), box.slice(0, range.begin, range.end))) << rank;
    part.stored().fill_(0);
    part.copy_from(whole);
    EXPECT_TRUE(at::equal(part.stored(), box.slice(0, range.begin, range.end))) << rank;
  }
}

TEST(Parameter, Wants_shards_before_flat_groups) {
  Parameter weight({.shape = {4}, .init = init::zeros()});
  const DeviceMesh mesh = mesh_of(0, {{"tp", 2}, {"dp", 2}});
  weight.place(mesh, "dp", FlatShard{.padded_numel = 4}, FlatShard{.padded_numel = 4});
  EXPECT_THAT([&] { weight.place(mesh, "tp", Shard{0}, Shard{0}); },
              ThrowsMessage<ConfigError>(HasSubstr("Apply tensor and expert parallelism before FSDP")));
}

TEST(Parameter, Stays_in_one_domain) {
  Parameter weight({.shape = {4}, .init = init::zeros()});
  weight.place(mesh_of(0, {{"tp", 2}}), "tp", Replicate{}, Partial{});
  EXPECT_THAT(
      [&] {
        weight.place(mesh_of(0, {{"ep_shard", 2}}), "ep_shard", Shard{0}, Shard{0});
      },
      ThrowsMessage<ConfigError>(HasSubstr("Take the axes of one domain")));
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
}  // namespace d9d::parameter_test
