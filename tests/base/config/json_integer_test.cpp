#include "d9d/base/config/json_integer.h"

#include <string>

#include <gtest/gtest.h>

namespace d9d::json_integer_test {
namespace {

using Json = nlohmann::json;

TEST(JsonInteger, Is_a_whole_number_of_64_bits_and_nothing_else) {
  EXPECT_EQ(json_integer(Json::parse("7")), 7);
  EXPECT_EQ(json_integer(Json::parse("-9223372036854775808")), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(json_integer(nlohmann::ordered_json::parse("9223372036854775807")),
            std::numeric_limits<std::int64_t>::max());
  for (const std::string text :
       {"9223372036854775808", "-58993459264294967296", "2.5", "7.0", "true", "\"7\"", "null"}) {
    EXPECT_THROW((void)json_integer(Json::parse(text)), Json::type_error) << text;
  }
}

TEST(JsonInteger, Of_a_list_is_each_of_its_values) {
  EXPECT_EQ(json_integers(Json::parse("[2, 3]")), (std::vector<std::int64_t>{2, 3}));
  for (const std::string text : {"[2, 3.5]", "{\"a\": 2}", "2"}) {
    EXPECT_THROW((void)json_integers(Json::parse(text)), Json::type_error) << text;
  }
}

}  // namespace
}  // namespace d9d::json_integer_test
