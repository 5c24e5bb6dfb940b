#include "d9d/core/dtensor/box_intersection.h"

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

TEST(ContiguousBegin, Is_where_a_box_lies_without_gaps) {
  const LocalBox outer = box({0, 10}, {3, 4});
  EXPECT_EQ(contiguous_begin(outer, box({1, 10}, {2, 4})), 4);
  EXPECT_EQ(contiguous_begin(outer, box({1, 12}, {1, 2})), 6);
  EXPECT_EQ(contiguous_begin(outer, box({1, 12}, {2, 2})), std::nullopt);
  EXPECT_EQ(contiguous_begin(box({}, {}), box({}, {})), 0);
}

}  // namespace
}  // namespace d9d::box_intersection_test
