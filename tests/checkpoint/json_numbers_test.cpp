#include "d9d/checkpoint/json_numbers.h"

#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"

namespace d9d::test::json_numbers_test {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using Json = nlohmann::ordered_json;

Json through_text(const Json& values) { return from_text_json(Json::parse(as_text_json(values).dump())); }

TEST(TextJson, Has_the_numbers_that_JSON_lacks) {
  const double infinity = std::numeric_limits<double>::infinity();
  const Json values = {{"best", {infinity, -infinity, 1.5}}, {"text", "nan"}};
  EXPECT_EQ(through_text(values), values);
  EXPECT_TRUE(std::isnan(through_text({{"mean", std::nan("")}}).at("mean").get<double>()));
  EXPECT_TRUE(std::isnan(through_text({{"non_finite", std::nan("")}}).at("non_finite").get<double>()));
}

TEST(TextJson, Keeps_values_that_look_like_its_own_marks) {
  for (const char* const value :
       {"3", R"("nan")", R"("text")", "null", "[3]", "[]", R"([["nan"]])", R"({"non_finite": [3]})"}) {
    const Json marked = {{"steps", {{"non_finite", Json::parse(value)}}}};
    EXPECT_EQ(through_text(marked).dump(), marked.dump());
  }
}

TEST(TextJson, Refuses_what_text_cannot_hold) {
  const auto expect_refused = [](const Json& values, const char* text) {
    EXPECT_THAT([&] { (void)as_text_json(values); }, ThrowsMessage<StateError>(HasSubstr(text)));
  };
  expect_refused({{"random", Json::binary({1, 2})}}, "got bytes. Save them as a list");
  expect_refused({{"random", "\xff\xfe"}}, "expected text in UTF-8 to save, got");
  expect_refused({{"\xff\xfe", 1}}, "expected text in UTF-8 to save, got");
}

}  // namespace
}  // namespace d9d::test::json_numbers_test
