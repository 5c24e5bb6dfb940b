// Parses the same texts with this parser and with pydantic: both must accept the same texts and yield equal values.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/base/config/record_json.h"

#include "tests/base/config/drawing.h"

namespace d9d::pydantic_parity_test {
namespace {

// The parsed value as JSON, or none if the text is refused.
template <class T>
std::optional<Json> parsed(const std::string& text) {
  try {
    return write_record(parse_record<T>(parse_json_text(text, "test")));
  } catch (const ConfigError&) {
    return std::nullopt;
  }
}

const std::map<std::string, std::function<std::optional<Json>(const std::string&)>> kParsers = {
    {"integer", parsed<std::int64_t>},
    {"number", parsed<double>},
    {"boolean", parsed<bool>},
    {"string", parsed<std::string>},
    {"path", parsed<std::filesystem::path>},
    {"color", parsed<Color>},
    {"nullable", parsed<std::optional<std::int64_t>>},
    {"list", parsed<std::vector<std::string>>},
    {"pair", parsed<std::pair<double, double>>},
    {"map", parsed<std::map<std::string, std::int64_t>>},
    {"drawing", parsed<Drawing>},
};

const std::map<std::string, std::vector<std::string>> kTexts = {
    {"integer", {R"(7)",       R"(-7)",     R"(5.0)",   R"(1e6)",   R"(1.5)",     R"("7")",
                 R"(" 7 ")",   R"("+7")",   R"("-7")",  R"("7.0")", R"("7.5")",   R"("1e3")",
                 R"("1_000")", R"("1__0")", R"("_1")",  R"("1_")",  R"("0x1")",   R"("")",
                 R"(true)",    R"(false)",  R"(null)",  R"([])",    R"({})",      R"("7.")",
                 R"(".0")",    R"("007")",  R"("- 7")", R"("+-7")", R"("7 .0")",  R"("1_0.0")",
                 R"("7.0_0")", R"("--7")",  R"(1e30)",  R"(-0.0)",  R"("\t7\n")", R"(9223372036854775807)",
                 R"("x")"}},
    {"number",
     {R"(7)",
      R"(5.5)",
      R"("7")",
      R"("1e3")",
      R"(" 1.5 ")",
      R"("1_0.5")",
      R"(true)",
      R"(null)",
      R"("")",
      R"("0x1")",
      R"(".5")",
      R"("5.")",
      R"("+.5e-3")",
      R"("1e")",
      R"("1__0")",
      R"("_1")",
      R"("1.5f")",
      R"([])",
      R"(1e-400)",
      R"("+-1")",
      R"("--1")",
      R"("+")",
      R"(12345678901234567890)"}},
    {"boolean",
     {R"(true)",  R"(false)",  R"(0)",        R"(1)",     R"(2)",   R"(0.0)", R"(1.0)",      R"(0.5)", R"("yes")",
      R"("YES")", R"("No")",   R"("on")",     R"("off")", R"("t")", R"("f")", R"("y")",      R"("n")", R"("1")",
      R"("0")",   R"("tRue")", R"(" true ")", R"(null)",  R"("")",  R"("2")", R"("enable")", R"([])"}},
    {"string", {R"("a")", R"("")", R"(1)", R"(1.5)", R"(true)", R"(null)", R"([])", R"("Ünïcode 🙂")"}},
    {"path", {R"("a/b")", R"(1)", R"(null)", R"([])"}},
    {"color", {R"("red")", R"("dark_blue")", R"("Red")", R"("")", R"(0)", R"(null)"}},
    {"nullable", {R"(null)", R"(3)", R"("3")", R"("x")"}},
    {"list", {R"(["a"])", R"([])", R"("a")", R"([1])", R"({})", R"([null])", R"(null)"}},
    {"pair", {R"([1, 2])", R"([1])", R"([1, 2, 3])", R"("ab")", R"({})", R"(["1", true])", R"([null, 1])"}},
    {"map", {R"({"a": 1})", R"({})", R"([])", R"({"a": "1"})", R"({"a": null})", R"({"a": 1.5})"}},
    {"drawing",
     {R"({"name": "a", "note": null})",
      R"({"name": "a"})",
      R"({"note": null})",
      R"({"name": null, "note": null})",
      R"({"name": "a", "note": "b", "count": 0})",
      R"({"name": "a", "note": "b", "count": "4"})",
      R"({"name": "a", "note": null, "count": null})",
      R"({"name": "a", "note": null, "colour": 1})",
      R"({"name": "a", "note": null, "shapes": [{"shape": "circle", "radius": 2}, {"shape": "square"}]})",
      R"({"name": "a", "note": null, "shapes": [{"radius": 2}]})",
      R"({"name": "a", "note": null, "shapes": [{"shape": "oval"}]})",
      R"({"name": "a", "note": null, "shapes": [{"shape": null}]})",
      R"({"name": "a", "note": null, "shapes": [{"shape": "circle", "radius": 0}]})",
      R"({"name": "a", "note": null, "shapes": [{"shape": "circle", "radius": 1, "width": 1}]})",
      R"({"name": "a", "note": null, "shapes": {}})",
      R"({"name": "a", "note": null, "frame": null})",
      R"({"name": "a", "note": null, "frame": {"shape": "square", "width": 2.0, "color": "dark_blue"}})",
      R"({"name": "a", "note": null, "frame": {"shape": "square", "color": "blue"}})",
      R"([])",
      R"(null)",
      R"("a")"}},
};

Json judged_by_pydantic(const Json& cases) {
  const auto folder = std::filesystem::path(::testing::TempDir());
  const auto input = folder / "pydantic_cases.json";
  const auto output = folder / "pydantic_results.json";
  std::ofstream(input) << cases.dump();
  const std::string command = "'" D9D_TEST_PYTHON "' '" D9D_SOURCE_DIR "/tests/base/config/pydantic_oracle.py' '" +
                              input.string() + "' '" + output.string() + "'";
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
  return read_json_file(output);
}

TEST(PydanticParity, Accepts_refuses_and_converts_what_pydantic_does) {
  Json cases = Json::array();
  for (const auto& [type, texts] : kTexts) {
    for (const auto& text : texts) cases.push_back({{"type", type}, {"text", text}});
  }
  const Json expected = judged_by_pydantic(cases);
  ASSERT_EQ(expected.size(), cases.size());
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const auto type = cases[i]["type"].get<std::string>();
    const auto text = cases[i]["text"].get<std::string>();
    const auto ours = kParsers.at(type)(text);
    ASSERT_EQ(ours.has_value(), expected[i]["accepted"].get<bool>()) << type << ' ' << text;
    if (ours) {
      EXPECT_EQ(*ours, expected[i]["value"]) << type << " " << text;
    }
  }
}

// Texts that this library refuses deliberately although pydantic accepts them.
TEST(PydanticParity, Refuses_what_no_setting_means) {
  EXPECT_EQ(parsed<double>("NaN"), std::nullopt);
  EXPECT_EQ(parsed<double>("Infinity"), std::nullopt);
  EXPECT_EQ(parsed<double>("1e400"), std::nullopt);
  EXPECT_EQ(parsed<double>(R"("nan")"), std::nullopt);
  EXPECT_EQ(parsed<double>(R"("inf")"), std::nullopt);
  EXPECT_EQ(parsed<std::int64_t>("9223372036854775808"), std::nullopt);
  EXPECT_EQ(parsed<Drawing>(R"({"name": "a", "name": "b", "note": null})"), std::nullopt);
}

}  // namespace
}  // namespace d9d::pydantic_parity_test
