#include "d9d/base/config/json_text.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"

namespace d9d::json_text_test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string error_of(const std::string& text) {
  try {
    std::ignore = parse_json_text(text, "a.json");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(JsonText, Names_line_and_column_of_a_syntax_error) {
  const auto error = error_of("{\n  \"a\": 1,\n  }");
  EXPECT_THAT(error, StartsWith("[config] a.json: line 3, column 3: expected JSON, got "));
  EXPECT_THAT(error, HasSubstr("expected string literal"));
  EXPECT_EQ(error.find('\n'), std::string::npos);
}

TEST(JsonText, Names_the_end_of_a_file_that_stops_early) {
  EXPECT_THAT(error_of("{\"a\": ["), StartsWith("[config] a.json: line 1, column 8: expected JSON, got "));
  EXPECT_THAT(error_of(""), StartsWith("[config] a.json: line 1, column 1: expected JSON, got "));
}

TEST(JsonText, Refuses_a_key_twice_in_one_object) {
  EXPECT_EQ(error_of(R"({"a": {"b": 1, "c": [{"d": 1}], "b": 2}})"),
            "[config] a.json: expected each key once in an object, got 'a.b' twice. Remove one.");
}

TEST(JsonText, Accepts_a_key_once_in_each_of_two_objects) {
  EXPECT_EQ(error_of(R"([{"a": 1}, {"a": {"a": 2}}])"), "accepted");
}

TEST(JsonText, Refuses_deep_nesting) {
  EXPECT_EQ(error_of(std::string(64, '[') + std::string(64, ']')), "accepted");
  EXPECT_EQ(error_of(std::string(100000, '[')),
            "[config] a.json: expected at most 64 levels of objects and lists, got more. Flatten the value.");
}

TEST(JsonText, Refuses_a_number_that_no_double_holds) { EXPECT_THAT(error_of("[1e999]"), HasSubstr("expected JSON")); }

TEST(JsonText, Refuses_text_that_is_not_utf8) { EXPECT_THAT(error_of("\"\xff\""), HasSubstr("UTF-8")); }

TEST(JsonText, Names_a_file_that_cannot_be_read) {
  EXPECT_THROW(std::ignore = read_json_file(::testing::TempDir() + "no_such.json"), IoError);
  EXPECT_THROW(std::ignore = read_json_file(::testing::TempDir()), IoError);
}

TEST(JsonExcerpt, Cuts_between_characters) {
  const Json json = std::string(78, 'x') + "\u00e9\u00e9\u00e9\u00e9";
  EXPECT_EQ(json_excerpt(json), "\"" + std::string(78, 'x') + "...");
}

}  // namespace
}  // namespace d9d::json_text_test
