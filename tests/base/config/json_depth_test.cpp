#include "d9d/base/config/json_depth.h"

#include <string>

#include <gtest/gtest.h>

namespace d9d::json_depth_test {
namespace {

TEST(JsonDepth, Counts_objects_and_lists_that_are_open_and_no_brackets_in_text) {
  EXPECT_EQ(json_depth("7"), 0);
  EXPECT_EQ(json_depth(R"([[], {"a": [1]}, []])"), 3);
  EXPECT_EQ(json_depth(R"({"[[[": "{{\"[[", "b": "\\", "c": [1]})"), 2);
  EXPECT_EQ(json_depth(std::string(200000, '[')), 200000);
}

}  // namespace
}  // namespace d9d::json_depth_test
