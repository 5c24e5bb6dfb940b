#include "d9d/base/name_regex.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"

namespace d9d::name_regex_test {
namespace {

using ::testing::AllOf, ::testing::HasSubstr;

NameRegex regex(const std::string& expression) { return {expression, "[here] ", "of names"}; }

template <class Function>
std::string error_of(const Function& function) {
  try {
    (void)function();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(NameRegex, Matches_whole_names) {
  EXPECT_TRUE(regex(R"(layers\.\d+\..*)").matches("layers.12.mlp.weight"));
  EXPECT_FALSE(regex(R"(layers\.\d+)").matches("layers.12.mlp.weight"));
  EXPECT_FALSE(regex("mlp").matches("layers.12.mlp"));
  EXPECT_TRUE(regex("a|ab").matches("ab"));  // not the first alternative that fits a begin
  EXPECT_FALSE(regex("a$").matches("a\n"));
  EXPECT_TRUE(regex("").matches(""));
}

TEST(NameRegex, Has_what_re_of_Python_has) {
  EXPECT_TRUE(regex(R"((?!.*\.norm\.).*weight)").matches("layers.0.mlp.weight"));
  EXPECT_FALSE(regex(R"((?!.*\.norm\.).*weight)").matches("layers.0.norm.weight"));
  EXPECT_TRUE(regex(R"(.*(?<!bias))").matches("a.weight"));
  EXPECT_TRUE(regex(R"((?P<part>\w+)\.(?P=part))").matches("up.up"));
  EXPECT_TRUE(regex("Б.").matches("Бé"));  // a dot is a character, not a byte
}

TEST(NameRegex, Replaces_each_match) {
  EXPECT_EQ(regex(R"(^blocks\.(\d+))").replace("blocks.7.w", "layers.$1"), "layers.7.w");
  EXPECT_EQ(regex("a").replace("banana", "[$0$$]"), "b[a$]n[a$]n[a$]");
  EXPECT_EQ(regex("(x)|(y)").replace("xy", "${1}0"), "x00");
  EXPECT_EQ(regex("z").replace("banana", "y"), "banana");
  EXPECT_EQ(regex("a").replace("aaa", std::string(300, 'b')), std::string(900, 'b'));  // longer than expected
}

TEST(NameRegex, Refuses_what_is_no_expression_and_what_no_group_is) {
  EXPECT_EQ(
      error_of([] { return regex("layers.(0"); }),
      "[here] expected a regular expression of names, got 'layers.(0': missing closing parenthesis at character 9.");
  EXPECT_THAT(error_of([] { return regex("a").replace("a", "$1"); }), AllOf(HasSubstr("[here]"), HasSubstr("'$1'")));
}

TEST(NameRegex, Refuses_an_expression_whose_search_would_not_end) {
  const std::string name = "model.layers." + std::string(60, 'a');
  for (const char* expression : {"(([a-z.])*)*[!?]", "(a|b|ab|.)*(.*)*(.*)*[!?]"}) {
    EXPECT_THAT(error_of([&] { return regex(expression).matches(name); }),
                AllOf(HasSubstr("at most 100000 steps"), HasSubstr(expression), HasSubstr(name)));
  }
  EXPECT_FALSE(regex("(([a-z.])*)*x").matches(name));  // the name has no x
  EXPECT_THAT(error_of([&] { return regex("(([a-z.])*)*[!?]").replace(std::string(60, 'a'), "b"); }),
              HasSubstr("at most 100000 steps"));
}

TEST(NameRegex, Refuses_names_of_more_than_a_kibibyte) {
  EXPECT_TRUE(regex("(x|y)+").matches(std::string(1024, 'x')));
  EXPECT_THAT(error_of([] { return regex("(x|y)+z").matches(std::string(400000, 'x')); }),
              HasSubstr("at most 1024 characters"));
  EXPECT_THAT(error_of([] { return regex("(x|y)+z").replace(std::string(1025, 'x'), ""); }),
              HasSubstr("at most 1024 characters"));
}

}  // namespace
}  // namespace d9d::name_regex_test
