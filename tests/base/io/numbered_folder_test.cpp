#include "d9d/base/io/numbered_folder.h"

#include <gtest/gtest.h>

namespace d9d::numbered_folder_test {
namespace {

TEST(NumberedFolder, Is_one_whose_name_ends_with_a_number) {
  EXPECT_EQ(number_of_folder("runs/a/save-200", "save-"), 200);
  EXPECT_EQ(number_of_folder("save-0", "save-"), 0);
  for (const char* const other :
       {"save-", "save-200.tmp", "save--1", "save-x", "step-200", "save-99999999999999999999"}) {
    EXPECT_FALSE(number_of_folder(other, "save-").has_value()) << other;
  }
}

}  // namespace
}  // namespace d9d::numbered_folder_test
