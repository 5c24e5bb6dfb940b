#include "d9d/core/dtensor/box_intersection.h"

#include <algorithm>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/ranks.h"

namespace d9d::box_intersection_test {
namespace {

using test::lone_rank;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

DeviceMesh mesh_of(std::int64_t rank, std::int64_t size) {  // nothing is communicated
  return {"m", {{"fsdp", size}}, lone_rank(rank, size)};
}

LocalBox box(std::vector<std::int64_t> start, std::vector<std::int64_t> sizes) {
  return {.start = std::move(start), .sizes = std::move(sizes)};
}

TEST(HeldBoxes, Of_a_flat_shard_are_its_rows_and_their_ends) {
  const auto held = [](std::int64_t rank) {  // [3, 4] at 2 of a group of 16: elements 0..2, 2..6, 6..10, 10..12
    const DeviceMesh mesh = mesh_of(rank, 4);
    return held_boxes({3, 4}, mesh, {FlatShard{.padded_numel = 16, .offset_in_unit = 2}}, mesh.coordinate());
  };
  EXPECT_THAT(held(0), ElementsAre(box({0, 0}, {1, 2})));
  EXPECT_THAT(held(1), ElementsAre(box({0, 2}, {1, 2}), box({1, 0}, {1, 2})));
  EXPECT_THAT(held(3), ElementsAre(box({2, 2}, {1, 2})));
}

TEST(HeldBoxes, Are_none_for_an_empty_slice) {
  const DeviceMesh mesh = mesh_of(1, 2);
  EXPECT_THAT(held_boxes({3}, mesh, {FlatShard{.padded_numel = 16}}, mesh.coordinate()), IsEmpty());
}

TEST(BoxIntersections, Are_the_common_elements_of_boxes) {
  const std::vector<LocalBox> source = {box({0, 0}, {2, 4}), box({2, 0}, {1, 1})};
  const std::vector<LocalBox> target = {box({1, 1}, {2, 2})};
  const std::vector<BoxIntersection> common = intersections(source, target);
  ASSERT_EQ(common.size(), 1U);
  EXPECT_EQ(common[0].box, box({1, 1}, {1, 2}));
  EXPECT_EQ(common[0].source, 0U);
}

// Random cuts of a box at lines along its dims: disjoint. Moved by one, as their common elements say.
TEST(AreDisjoint, Says_what_all_pairs_say) {
  std::mt19937 draw(0);  // NOLINT(cert-msc32-c,cert-msc51-cpp): the same cases each time
  const auto below = [&](std::int64_t end) { return static_cast<std::int64_t>(draw()) % end; };
  int num_disjoint = 0;
  for (int i = 0; i < 2000; ++i) {
    std::vector<LocalBox> boxes = {box({0, 0, 0}, {6, 6, 6})};
    for (std::int64_t cuts = below(12); cuts > 0; --cuts) {
      LocalBox& cut = boxes[static_cast<std::size_t>(below(std::ssize(boxes)))];
      const auto dim = static_cast<std::size_t>(below(3));
      if (cut.sizes[dim] < 2) continue;
      const std::int64_t size = 1 + below(cut.sizes[dim] - 1);
      LocalBox rest = cut;
      rest.start[dim] += size;
      rest.sizes[dim] -= size;
      cut.sizes[dim] = size;
      boxes.push_back(rest);
    }
    std::ranges::shuffle(boxes, draw);
    EXPECT_TRUE(are_disjoint(boxes));
    LocalBox& moved = boxes[static_cast<std::size_t>(below(std::ssize(boxes)))];
    moved.start[static_cast<std::size_t>(below(3))] += 1 - 2 * below(2);
    const bool is_right = intersections(boxes, boxes).size() == boxes.size();
    num_disjoint += static_cast<int>(is_right);
    EXPECT_EQ(are_disjoint(boxes), is_right);
  }
  EXPECT_GT(num_disjoint, 100);
  EXPECT_LT(num_disjoint, 1900);
}

TEST(AreDisjoint, Divides_no_pinwheel_and_yet_knows) {
  std::vector<LocalBox> pinwheel = {box({0, 0}, {1, 2}), box({0, 2}, {2, 1}), box({2, 1}, {1, 2}), box({1, 0}, {2, 1}),
                                    box({1, 1}, {1, 1})};
  EXPECT_TRUE(are_disjoint(pinwheel));
  pinwheel[4] = box({1, 1}, {1, 2});
  EXPECT_FALSE(are_disjoint(pinwheel));
  EXPECT_FALSE(are_disjoint({box({}, {}), box({}, {})}));
}

// In pairs these would be 2.5e9 comparisons for each layout: a minute.
TEST(AreDisjoint, Takes_no_time_for_the_boxes_of_many_ranks) {
  std::vector<LocalBox> rows, columns, grid, flat;
  constexpr std::int64_t kNumRanks = 50000;
  for (std::int64_t i = 0; i < kNumRanks; ++i) {
    rows.push_back(box({2 * i, 0}, {2, 7}));
    columns.push_back(box({0, 3 * i}, {5, 3}));
    grid.push_back(box({i / 250, i % 250}, {1, 1}));
    for (LocalBox& part : boxes_of_range(box({0, 0}, {4 * kNumRanks, 3}), {.begin = 10 * i, .end = 10 * (i + 1)})) {
      flat.push_back(std::move(part));
    }
  }
  for (std::vector<LocalBox>* const boxes : {&rows, &columns, &grid, &flat}) {
    EXPECT_TRUE(are_disjoint(*boxes));
    boxes->push_back((*boxes)[1]);
    EXPECT_FALSE(are_disjoint(*boxes));
  }
}

TEST(ContiguousBegin, Is_where_a_box_lies_without_gaps) {
  const LocalBox outer = box({0, 10}, {3, 4});
  EXPECT_EQ(contiguous_begin(outer, box({1, 10}, {2, 4})), 4);
  EXPECT_EQ(contiguous_begin(outer, box({1, 12}, {1, 2})), 6);
  EXPECT_EQ(contiguous_begin(outer, box({1, 12}, {2, 2})), std::nullopt);
  EXPECT_EQ(contiguous_begin(box({}, {}), box({}, {})), 0);
}

}  // namespace
}  // namespace d9d::box_intersection_test
