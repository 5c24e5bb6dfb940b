#include "d9d/kernels/moe_permute/select_rows.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"

#include "tests/kernels/op_testing.h"

namespace d9d::kernels::select_rows_test {
namespace {

using ::d9d::testing::backward;
using ::d9d::testing::leaf;
using ::d9d::testing::values;

TEST(SelectRows, Is_index_select_with_the_same_gradient) {
  for (const std::vector<std::int64_t>& chosen : {std::vector<std::int64_t>{4, 0, 3}, {2}, {}}) {
    const at::Tensor rows = at::tensor(chosen, at::kLong);
    const at::Tensor ours = leaf(values({5, 3}, 1)), theirs = leaf(values({5, 3}, 1));
    const at::Tensor some = select_rows(ours, rows), expected = theirs.index_select(0, rows);
    EXPECT_TRUE(at::equal(some, expected));
    backward({some, expected}, {values(some.sizes(), 2), values(some.sizes(), 2)});
    EXPECT_TRUE(at::equal(ours.grad(), theirs.grad()));
  }
}

TEST(PlaceRows, Is_zero_where_no_row_was_selected_and_takes_the_gradient_of_the_others) {
  const at::Tensor rows = at::tensor({3, 1}, at::kLong);
  const at::Tensor given = leaf(values({2, 3}, 1)), grad = values({4, 3}, 2);
  const at::Tensor placed = place_rows(given, rows, 4);
  EXPECT_TRUE(at::equal(placed.index_select(0, rows), given));
  EXPECT_EQ(placed.index_select(0, at::tensor({0, 2}, at::kLong)).abs().max().item<double>(), 0);
  backward({placed}, {grad});
  EXPECT_TRUE(at::equal(given.grad(), grad.index_select(0, rows)));
}

TEST(SelectRows, Refuses_rows_that_are_no_list_and_values_without_a_place) {
  EXPECT_THROW((void)select_rows(at::zeros({5, 3}), at::zeros({2, 1}, at::kLong)), ConfigError);
  EXPECT_THROW((void)select_rows(at::zeros({5, 3}), at::zeros({2})), ConfigError);
  EXPECT_THROW((void)place_rows(at::zeros({2, 3}), at::zeros({1}, at::kLong), 4), ConfigError);
}

}  // namespace
}  // namespace d9d::kernels::select_rows_test
