#include "d9d/data/description/data_description.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace d9d::data_description_test {
namespace {

TEST(DataDescription, Is_a_line_for_each_part_below_what_reads_it) {
  const DataDescription root{.line = "mixture",
                             .inputs = {{.line = "a", .inputs = {{.line = "files of a"}}}, {.line = "b"}}};
  EXPECT_THAT(tree_lines(root), ::testing::ElementsAre("mixture", "  a", "    files of a", "  b"));
}

TEST(DataDescription, Counts_one_thing_and_several) {
  EXPECT_EQ(counted(1, "sample"), "1 sample");
  EXPECT_EQ(counted(0, "sample"), "0 samples");
  EXPECT_EQ(counted(2, "microbatch", "es"), "2 microbatches");
}

TEST(DataDescription, Names_the_first_of_several_files) {
  EXPECT_EQ(name_of_files({"a.bin"}), "'a.bin'");
  EXPECT_EQ(name_of_files({"a.bin", "b.bin"}), "'a.bin' and 1 more file");
  EXPECT_EQ(name_of_files({"a.bin", "b.bin", "c.bin"}), "'a.bin' and 2 more files");
  EXPECT_EQ(name_of_files({}), "no files");
}

}  // namespace
}  // namespace d9d::data_description_test
