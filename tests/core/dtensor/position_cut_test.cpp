#include "d9d/core/dtensor/position_cut.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"

#include "tests/support/io_faults.h"
#include "tests/support/ranks.h"

namespace d9d::position_cut_test {
namespace {

using ::testing::HasSubstr;
using Ranges = std::vector<FlatRange>;

DeviceMesh mesh_of_rank(std::int64_t rank) {
  return DeviceMesh("batch", {{"cp", 2}, {"tp", 2}}, test::lone_rank(rank, 4));
}

// Head and tail on one rank, the middle on the other.
PositionCut balanced(const DeviceMesh& mesh) { return PositionCut(mesh.slice({"cp"}), {{0, 3}, {1, 2}}); }

TEST(PositionCut, Of_nothing_is_the_whole_sequence) {
  EXPECT_EQ(PositionCut().ranges(7), (Ranges{{0, 7}}));
  EXPECT_EQ(PositionCut(), PositionCut(DeviceMesh()));
  const at::Tensor x = at::arange(7);
  EXPECT_TRUE(PositionCut().part_of(x, 0).is_same(x));
}

TEST(PositionCut, Gives_equal_parts_in_the_order_of_the_ranks) {
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    const DeviceMesh mesh = mesh_of_rank(rank);
    const PositionCut cut = PositionCut(mesh.slice({"cp"})).then(PositionCut(mesh.slice({"tp"})));
    EXPECT_EQ(cut.num_ranks(), 4);
    EXPECT_EQ(cut.divisor(), 4);
    EXPECT_EQ(cut.ranges(12), (Ranges{{3 * rank, 3 * rank + 3}}));
    EXPECT_EQ(cut.ranges(12, 1), (Ranges{{3, 6}}));
  }
}

TEST(PositionCut, Gives_chunks_in_the_order_of_the_rank) {
  const PositionCut first = balanced(mesh_of_rank(0)), second = balanced(mesh_of_rank(2));
  EXPECT_EQ(first.divisor(), 4);
  EXPECT_EQ(first.ranges(8), (Ranges{{0, 2}, {6, 8}}));
  EXPECT_EQ(second.ranges(8), (Ranges{{2, 6}}));  // adjacent
  EXPECT_TRUE(at::equal(first.part_of(at::arange(8), 0), at::tensor({0, 1, 6, 7}, at::kLong)));
}

TEST(PositionCut, Cuts_what_another_leaves) {
  const std::vector<Ranges> expected = {{{0, 3}}, {{9, 12}}, {{3, 6}}, {{6, 9}}};
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    const DeviceMesh mesh = mesh_of_rank(rank);
    EXPECT_EQ(balanced(mesh).then(PositionCut(mesh.slice({"tp"}))).ranges(12), expected[static_cast<std::size_t>(rank)])
        << rank;
  }
  const DeviceMesh mesh = mesh_of_rank(1);
  const PositionCut both = PositionCut(mesh.slice({"tp"})).then(balanced(mesh));
  EXPECT_EQ(both.divisor(), 8);
  EXPECT_EQ(both.ranges(16), (Ranges{{8, 10}, {14, 16}}));
}

TEST(PositionCut, Puts_the_parts_of_all_ranks_in_order) {
  const DeviceMesh mesh = mesh_of_rank(0);
  const PositionCut cut = balanced(mesh).then(PositionCut(mesh.slice({"tp"})));
  const at::Tensor whole = at::arange(24).view({2, 12});
  std::vector<at::Tensor> parts;
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    for (const FlatRange& range : cut.ranges(12, rank)) parts.push_back(whole.narrow(1, range.begin, range.numel()));
  }
  EXPECT_FALSE(at::equal(at::cat(parts, 1), whole));
  EXPECT_TRUE(at::equal(cut.in_order(at::cat(parts, 1), 1), whole));
  EXPECT_TRUE(at::equal(cut.in_rank_order(whole, 1), at::cat(parts, 1)));
  EXPECT_TRUE(PositionCut(mesh.slice({"cp"})).in_rank_order(whole, 1).is_same(whole));
}

TEST(PositionCut, Finds_each_position) {
  const DeviceMesh mesh = mesh_of_rank(0);
  for (const PositionCut& cut : {balanced(mesh).then(PositionCut(mesh.slice({"tp"}))), balanced(mesh), PositionCut()}) {
    for (std::int64_t position = 0; position < 8; ++position) {
      const auto [rank, index] = cut.place_of(position, 8);
      std::vector<std::int64_t> all;
      for (const FlatRange& range : cut.ranges(8, rank)) {
        for (std::int64_t i = range.begin; i < range.end; ++i) all.push_back(i);
      }
      EXPECT_EQ(all.at(static_cast<std::size_t>(index)), position);
    }
  }
}

TEST(PositionCutErrors, Name_a_length_that_the_ranks_do_not_divide) {
  EXPECT_THAT(test::message_of<ConfigError>([] { (void)balanced(mesh_of_rank(0)).ranges(6); }),
              HasSubstr("a multiple of 4 positions for the 2 ranks that share it, got 6"));
}

TEST(PositionCutErrors, Name_chunks_that_are_not_those_of_the_ranks) {
  const auto make = [](std::vector<std::vector<std::int64_t>> chunks) {
    return [chunks] { (void)PositionCut(mesh_of_rank(0).slice({"cp"}), chunks); };
  };
  EXPECT_THROW(make({{0, 1}, {2, 2}})(), ConfigError);
  EXPECT_THROW(make({{0, 1}, {2}})(), ConfigError);
  EXPECT_THROW(make({{0}, {1}, {2}})(), ConfigError);
}

}  // namespace
}  // namespace d9d::position_cut_test
