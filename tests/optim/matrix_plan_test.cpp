#include "d9d/optim/matrix_plan.h"

#include <algorithm>
#include <numeric>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/core/dtensor/redistribute_steps.h"

#include "tests/support/ranks.h"

namespace d9d::matrix_plan_test {
namespace {

using detail::MatrixPlan;

// A parameter as rank `rank` of a mesh of four has it.
NamedParameter parameter(const DeviceMesh& mesh, const std::vector<std::int64_t>& shape, const Placements& placements) {
  return {.name = "p",
          .tensor = at::zeros(local_shape(shape, mesh, placements)),
          .global_shape = shape,
          .mesh = mesh,
          .placements = placements};
}

DeviceMesh mesh_of(std::int64_t rank, const std::vector<MeshAxis>& axes) {
  std::int64_t num_ranks = 1;
  for (const MeshAxis& axis : axes) num_ranks *= axis.size;
  return {"ranks", axes, test::lone_rank(rank, num_ranks)};
}

std::int64_t sum(const std::vector<std::int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), std::int64_t{0});
}

TEST(MatrixPlan, Balances_the_cost_of_a_model_over_ranks) {
  const DeviceMesh mesh = mesh_of(0, {{"shard", 8}});
  std::vector<double> loads;
  for (int layer = 0; layer < 28; ++layer) {
    std::vector<NamedParameter> layers;
    for (const auto& shape : std::vector<std::vector<std::int64_t>>{
             {64, 64}, {32, 64}, {32, 64}, {64, 64}, {192, 64}, {192, 64}, {64, 192}}) {
      layers.push_back(parameter(mesh, shape, {Shard{0}}));
    }
    (void)detail::plan_matrices(layers, loads);
  }
  ASSERT_EQ(loads.size(), 8);
  const double mean = std::accumulate(loads.begin(), loads.end(), 0.0) / 8;
  EXPECT_LT(*std::ranges::max_element(loads), 1.05 * mean);
}

// What the ranks of a mesh plan, by rank.
std::vector<MatrixPlan> plans_of(const std::vector<MeshAxis>& axes, const std::vector<std::int64_t>& shape,
                                 const Placements& placements) {
  std::vector<MatrixPlan> plans;
  std::int64_t num_ranks = 1;
  for (const MeshAxis& axis : axes) num_ranks *= axis.size;
  for (std::int64_t rank = 0; rank < num_ranks; ++rank) {
    std::vector<double> loads;
    plans.push_back(detail::plan_matrices({parameter(mesh_of(rank, axes), shape, placements)}, loads));
  }
  return plans;
}

TEST(MatrixPlan, Gives_each_group_an_owner_and_its_owner_all_parts) {
  const std::vector<MatrixPlan> plans =
      plans_of({{"shard", 4}}, {5, 3, 7}, {FlatShard{.padded_numel = 128, .offset_in_unit = 13}});
  std::int64_t num_matrices = 0;
  for (std::size_t rank = 0; rank < plans.size(); ++rank) {
    num_matrices += std::ssize(plans[rank].owned);
    EXPECT_EQ(sum(plans[rank].owned_splits), std::ssize(plans[rank].owned) * 21);
    for (std::size_t other = 0; other < plans.size(); ++other) {
      EXPECT_EQ(plans[rank].held_splits[other], plans[other].owned_splits[rank]);
    }
  }
  EXPECT_EQ(num_matrices, 5);
}

TEST(MatrixPlan, Needs_no_exchange_over_an_axis_that_cuts_groups_or_replicates) {
  const std::vector<MeshAxis> axes = {{"replicate", 2}, {"ep", 2}};
  const DeviceMesh mesh = mesh_of(1, axes);
  EXPECT_TRUE(detail::matrix_axes(parameter(mesh, {5, 3, 7}, {Replicate{}, Shard{0}})).empty());
  EXPECT_EQ(detail::matrix_axes(parameter(mesh, {5, 7}, {Replicate{}, Shard{0}})), std::vector<std::size_t>{1});
  const std::vector<MatrixPlan> plans = plans_of(axes, {5, 3, 7}, {Replicate{}, Shard{0}});
  EXPECT_EQ(plans[0].owned.size(), 3);
  EXPECT_EQ(plans[1].owned.size(), 2);
  EXPECT_EQ(plans[2].owned.size(), 3);
}

TEST(MatrixPlan, Copies_slices_of_rows_and_of_columns) {
  for (const Placements& placements :
       {Placements{Shard{1}, FlatShard{.padded_numel = 64, .offset_in_unit = 3}},
        Placements{Shard{0}, FlatShard{.padded_numel = 64, .offset_in_unit = 3}}, Placements{Shard{1}, Shard{0}}}) {
    const std::vector<MeshAxis> axes = {{"tp", 2}, {"shard", 4}};
    const at::Tensor whole = at::arange(9 * 7).view({9, 7});
    const at::Tensor gathered = at::full_like(whole, -1);
    const auto plans = plans_of(axes, {9, 7}, placements);
    const auto owner = std::ranges::find_if(plans, [](const MatrixPlan& plan) { return !plan.owned.empty(); });
    ASSERT_NE(owner, plans.end());
    std::size_t next = 0;
    for (std::int64_t rank = 0; rank < 8; ++rank) {
      const DeviceMesh mesh = mesh_of(rank, axes);
      const at::Tensor part = move_elements(whole, {9, 7}, mesh, {Replicate{}, Replicate{}}, placements).reshape({-1});
      if (part.numel() == 0) continue;
      const detail::OwnedSlice& slice = owner->owned.front().slices[next++];
      ASSERT_EQ(slice.numel, part.numel());
      detail::copy_slice_to_matrix(gathered, part, slice);
      const at::Tensor back = at::empty_like(part);
      detail::copy_matrix_to_slice(whole, back, slice);
      EXPECT_TRUE(at::equal(back, part));
    }
    EXPECT_TRUE(at::equal(gathered, whole));
  }
}

}  // namespace
}  // namespace d9d::matrix_plan_test
