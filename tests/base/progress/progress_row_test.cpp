#include "d9d/base/progress/progress_row.h"

#include <gtest/gtest.h>

namespace d9d::progress_row_test {
namespace {

const ProgressRow kRow = {.label = "train",
                          .done = 45,
                          .total = 300,
                          .fields = {"loss 2.3456", "grad 1.23", "lr 3.0e-04"},
                          .seconds_left = 42};

TEST(ProgressRow, Shows_position_bar_percentage_fields_and_time_left) {
  EXPECT_EQ(row_text(kRow, 120),
            "train  45/300 [===>                      ]  15%  loss 2.3456  grad 1.23  lr 3.0e-04  eta 0:42");
}

TEST(ProgressRow, Shrinks_the_bar_before_anything_else) {
  EXPECT_EQ(row_text(kRow, 80), "train  45/300 [=>           ]  15%  loss 2.3456  grad 1.23  lr 3.0e-04  eta 0:42");
}

TEST(ProgressRow, Leaves_out_the_bar_then_fields_from_the_last_then_the_time_left) {
  EXPECT_EQ(row_text(kRow, 70), "train  45/300  15%  loss 2.3456  grad 1.23  lr 3.0e-04  eta 0:42");
  EXPECT_EQ(row_text(kRow, 60), "train  45/300  15%  loss 2.3456  grad 1.23  eta 0:42");
  EXPECT_EQ(row_text(kRow, 30), "train  45/300  15%  eta 0:42");
  EXPECT_EQ(row_text(kRow, 20), "train  45/300  15%");
  EXPECT_EQ(row_text(kRow, 9), "train  45");
}

TEST(ProgressRow, Leaves_out_fields_after_the_fourth_before_the_bar) {
  const ProgressRow row{.label = "train", .done = 1, .total = 2, .fields = {"a", "b", "c", "d", "memory", "data"}};
  EXPECT_EQ(row_text(row, 51), "train 1/2 [====>   ]  50%  a  b  c  d  memory  data");
  EXPECT_EQ(row_text(row, 47), "train 1/2 [=====>    ]  50%  a  b  c  d  memory");
  EXPECT_EQ(row_text(row, 36), "train 1/2 [===>   ]  50%  a  b  c  d");
  EXPECT_EQ(row_text(row, 33), "train 1/2  50%  a  b  c  d");
}

TEST(ProgressRow, Is_never_wider_than_asked) {
  for (int columns = 0; columns < 150; ++columns) {
    EXPECT_LE(row_text(kRow, columns).size(), static_cast<std::size_t>(columns));
  }
}

TEST(ProgressRow, Fills_the_bar_when_all_is_done) {
  EXPECT_EQ(row_text({.label = "load", .done = 7, .total = 7}, 30), "load 7/7 [==============] 100%");
}

TEST(ProgressRow, As_a_line_has_no_bar) {
  EXPECT_EQ(line_text(kRow), "train  45/300  15%  loss 2.3456  grad 1.23  lr 3.0e-04  eta 0:42");
}

TEST(ProgressRow, Writes_durations_as_clocks_do) {
  EXPECT_EQ(duration_text(0.4), "0:00");
  EXPECT_EQ(duration_text(59.6), "1:00");
  EXPECT_EQ(duration_text(725), "12:05");
  EXPECT_EQ(duration_text(3 * 3600 + 4 * 60 + 5), "3:04:05");
}

TEST(ProgressRow, Writes_numbers_with_three_digits_and_a_unit) {
  EXPECT_EQ(short_number(0), "0");
  EXPECT_EQ(short_number(9.876), "9.88");
  EXPECT_EQ(short_number(999.4), "999");
  EXPECT_EQ(short_number(999.6), "1.00k");
  EXPECT_EQ(short_number(12345), "12.3k");
  EXPECT_EQ(short_number(999499), "999k");
  EXPECT_EQ(short_number(1.5e6), "1.50M");
  EXPECT_EQ(short_number(9.996e9), "10.0G");
  EXPECT_EQ(short_number(-12345), "-12.3k");
}

}  // namespace
}  // namespace d9d::progress_row_test
