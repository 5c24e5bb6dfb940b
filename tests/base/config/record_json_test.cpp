#include "d9d/base/config/record_json.h"

#include <array>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/base/config/name_list.h"

#include "tests/base/config/drawing.h"

namespace d9d::record_json_test {
namespace {

using ::testing::HasSubstr;

std::string error_of(const std::string& text) {
  try {
    std::ignore = parse_record<Drawing>(parse_json_text(text, "a.json"), {.source = "a.json"});
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

// What the first use of a record says.
template <class T>
std::string mistake_in() {
  try {
    std::ignore = json_type<T>();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

struct TwoOfOneName {
  std::int64_t size = 1;
  std::int64_t length = 1;
  static constexpr auto fields() {
    return record<TwoOfOneName>(required("size", &TwoOfOneName::size), required("size", &TwoOfOneName::length));
  }
};
struct Part {
  std::int64_t size = 1;
  static constexpr auto fields() { return record<Part>(required("size", &Part::size)); }
};
struct FlattenedTwice {
  std::int64_t size = 1;
  Part part = {};
  static constexpr auto fields() {
    return record<FlattenedTwice>(required("size", &FlattenedTwice::size), flattened(&FlattenedTwice::part));
  }
};
struct RangeOfText {
  std::optional<std::string> text = {};
  static constexpr auto fields() { return record<RangeOfText>(defaulted("text", &RangeOfText::text, at_least(1))); }
};
struct EmptyRange {
  std::vector<double> numbers = {};
  static constexpr auto fields() {
    return record<EmptyRange>(defaulted("numbers", &EmptyRange::numbers, between(1, 0)));
  }
};
struct Disc {
  static constexpr Tag kTag = {"shape", "round"};
  static constexpr auto fields() { return record<Disc>(); }
};
struct Ball {
  static constexpr Tag kTag = {"shape", "round"};
  static constexpr auto fields() { return record<Ball>(); }
};

TEST(RecordType, Refuses_a_key_that_two_fields_have) {
  EXPECT_EQ(mistake_in<TwoOfOneName>(),
            "[config] expected each key of a record once, got 'size' twice. Rename a field in fields(), or one of a "
            "flattened record.");
  EXPECT_THAT(mistake_in<FlattenedTwice>(), HasSubstr("got 'size' twice"));
}

TEST(RecordType, Refuses_a_range_that_would_check_nothing) {
  EXPECT_THAT(mistake_in<RangeOfText>(), HasSubstr("expected a range only for numbers and containers of them, got one "
                                                   "for 'text'"));
  EXPECT_THAT(mistake_in<EmptyRange>(),
              HasSubstr("expected the range of 'numbers' to begin before it ends, got 1 to 0"));
}

TEST(RecordType, Refuses_a_tag_that_two_alternatives_have) {
  EXPECT_THAT((mistake_in<std::variant<Disc, Ball>>()), HasSubstr("got 'round' twice. Give its records distinct"));
}

TEST(ParseRecord, Names_the_nearest_key_of_an_unknown_one) {
  EXPECT_EQ(error_of(R"({"name": "a", "note": null, "conut": 1})"),
            "[config] a.json: unknown key 'conut'. Did you mean 'count'?");
}

TEST(ParseRecord, Lists_the_keys_when_none_is_near) {
  EXPECT_EQ(error_of(R"({"name": "a", "note": null, "batching": 1})"),
            "[config] a.json: unknown key 'batching'. Known: 'name', 'note', 'count', 'shapes', 'frame'.");
}

TEST(ParseRecord, Reports_a_misspelt_key_before_the_missing_one) {
  EXPECT_EQ(error_of(R"({"nmae": "a", "note": null})"), "[config] a.json: unknown key 'nmae'. Did you mean 'name'?");
}

TEST(ParseRecord, Takes_no_other_word_of_three_letters_for_a_misspelt_one) {
  constexpr std::array<std::string_view, 3> kDevices = {"auto", "cpu", "cuda"};
  EXPECT_EQ(nearest_name("gpu", kDevices), "");
  EXPECT_EQ(nearest_name("cud", kDevices), "cuda");
}

TEST(ParseRecord, Names_the_path_of_a_missing_key) {
  EXPECT_EQ(error_of(R"({"name": "a", "note": null, "shapes": [{"shape": "circle"}]})"),
            "[config] a.json: missing key 'shapes.0.radius'. Add it.");
}

TEST(ParseRecord, Names_the_path_rule_and_value_of_a_wrong_type) {
  EXPECT_EQ(error_of(R"({"name": 5, "note": null})"),
            "[config] a.json: name: expected a string, got 5. Change the value.");
}

TEST(ParseRecord, Says_what_to_do_about_null) {
  EXPECT_EQ(error_of(R"({"name": "a", "note": null, "count": null})"),
            "[config] a.json: count: expected an integer of at most 64 bits, got null. Give a value, or leave out the "
            "key if it has a default.");
}

TEST(ParseRecord, Names_the_bound_that_a_number_breaks) {
  EXPECT_EQ(error_of(R"({"name": "a", "note": null, "count": 0})"),
            "[config] a.json: count: expected a number >= 1, got 0. Change the value.");
}

TEST(ParseRecord, Tells_a_missing_tag_from_an_unknown_one) {
  EXPECT_EQ(error_of(R"({"name": "a", "note": null, "frame": {}})"),
            "[config] a.json: missing key 'frame.shape', which is one of 'circle', 'square'. Add it.");
  EXPECT_EQ(error_of(R"({"name": "a", "note": null, "frame": {"shape": "sqare"}})"),
            "[config] a.json: frame.shape: expected one of 'circle', 'square', got \"sqare\". Did you mean 'square'?");
}

TEST(ParseRecord, Lists_the_names_of_an_enum) {
  EXPECT_EQ(error_of(R"({"name": "a", "note": null, "frame": {"shape": "square", "color": 1}})"),
            "[config] a.json: frame.color: expected one of 'red', 'dark_blue', got 1. Change the value.");
}

TEST(ParseRecord, Shortens_a_long_value) {
  const auto error = error_of(R"({"name": [")" + std::string(1000, 'x') + R"("], "note": null})");
  EXPECT_THAT(error, HasSubstr("name: expected a string, got [\"xxx"));
  EXPECT_LT(error.size(), 200U);
}

// --- records that one file of the library uses each: tags, flattening, rules across fields

struct Limits {
  std::int64_t low = 0;
  std::int64_t high = 10;
  void validate(const ConfigPath& path) const {
    D9D_CHECK(low <= high, ConfigError, path, "expected low <= high = ", high, ", got low = ", low, ". Swap them.");
  }
  static constexpr auto fields() {
    return record<Limits>(required("low", &Limits::low), defaulted("high", &Limits::high));
  }
};

struct FileSource {
  std::filesystem::path file = {};
  Limits limits = {};
  static constexpr Tag kTag = {"kind", "file"};
  static constexpr auto fields() {
    return record<FileSource>(required("file", &FileSource::file), flattened(&FileSource::limits));
  }
};

struct PlainSource {
  double rate = 0.5;
  std::pair<double, double> betas = {0.9, 0.999};
  nlohmann::json extra = {};
  static constexpr auto fields() {
    return record<PlainSource>(required("rate", &PlainSource::rate, half_open(0, 1)),
                               defaulted("betas", &PlainSource::betas, half_open(0, 1)),
                               defaulted("extra", &PlainSource::extra));
  }
};

using Source = std::variant<FileSource, PlainSource>;

TEST(ParseRecord, Reads_flattened_keys_from_the_outer_object) {
  const auto source = parse_record<Source>(Json::parse(R"({"kind": "file", "file": "x", "low": 3})"));
  EXPECT_EQ(std::get<FileSource>(source).limits.low, 3);
  EXPECT_EQ(std::get<FileSource>(source).limits.high, 10);
}

TEST(ParseRecord, Refuses_an_empty_path) {
  EXPECT_THAT([] { (void)parse_record<Source>(Json::parse(R"({"kind": "file", "file": "", "low": 3})")); },
              ThrowsMessage<ConfigError>(HasSubstr("file: expected a path, got an empty one")));
}

// A record with the tag of the one that it flattens.
struct RatedFile {
  FileSource source = {};
  double rate = 0.5;
  static constexpr Tag kTag = FileSource::kTag;
  static constexpr auto fields() {
    return record<RatedFile>(flattened(&RatedFile::source), defaulted("rate", &RatedFile::rate));
  }
};

TEST(ParseRecord, Knows_the_tag_of_a_flattened_record_as_its_own) {
  const Json json = Json::parse(R"({"kind": "file", "file": "x", "low": 3, "high": 4, "rate": 0.25})");
  const auto parsed = parse_record<RatedFile>(json);
  EXPECT_EQ(parsed.source.limits.low, 3);
  EXPECT_EQ(write_record(parsed), json);
}

TEST(ParseRecord, Takes_the_alternative_without_a_tag_when_the_tag_is_missing) {
  const auto source = parse_record<Source>(Json::parse(R"({"rate": 0.25, "extra": {"any": [1, null]}})"));
  EXPECT_EQ(std::get<PlainSource>(source).rate, 0.25);
  EXPECT_EQ(std::get<PlainSource>(source).extra.dump(), R"({"any":[1,null]})");
}

TEST(ParseRecord, Asks_for_the_tag_that_an_object_of_a_tagged_alternative_lacks) {
  try {
    std::ignore = parse_record<Source>(Json::parse(R"({"file": "x", "low": 3})"), {.keys = "data"});
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "[config] missing key 'data.kind', which is one of 'file'. Add it.");
  }
}

TEST(ParseRecord, Asks_for_the_tag_that_has_another_key) {
  try {
    std::ignore = parse_record<Source>(Json::parse(R"({"type": "file", "high": 3})"), {.keys = "data"});
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "[config] missing key 'data.kind', which is one of 'file'. Add it.");
  }
}

TEST(ParseRecord, Takes_an_unknown_key_for_one_of_the_alternative_without_a_tag) {
  try {
    std::ignore = parse_record<Source>(Json::parse(R"({"rtae": 0.5})"), {.keys = "data"});
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "[config] unknown key 'data.rtae'. Did you mean 'rate'?");
  }
}

TEST(ParseRecord, Applies_a_range_to_each_number_of_a_list) {
  EXPECT_THROW(std::ignore = parse_record<Source>(Json::parse(R"({"rate": 0, "betas": [0.9, 1.0]})")), ConfigError);
  EXPECT_THROW(std::ignore = parse_record<Source>(Json::parse(R"({"rate": 1})")), ConfigError);
}

TEST(ParseRecord, Runs_the_rules_across_fields) {
  try {
    std::ignore = parse_record<Source>(Json::parse(R"({"kind": "file", "file": "x", "low": 11})"), {.keys = "data"});
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "[config] data: expected low <= high = 10, got low = 11. Swap them.");
  }
}

TEST(ParseRecord, Refuses_the_tag_of_another_record) {
  EXPECT_NO_THROW(std::ignore = parse_record<Square>(Json::parse("{}")));
  EXPECT_NO_THROW(std::ignore = parse_record<Square>(Json::parse(R"({"shape": "square"})")));
  EXPECT_THROW(std::ignore = parse_record<Square>(Json::parse(R"({"shape": "circle"})")), ConfigError);
}

TEST(WriteRecord, Gives_every_key_in_order_and_reads_back_equal) {
  const Json json = write_record(Drawing{.name = "a", .shapes = {Circle{.radius = 0.1}, Square{}}});
  EXPECT_EQ(json.dump(), R"({"name":"a","note":null,"count":3,"shapes":[{"shape":"circle","radius":0.1},)"
                         R"({"shape":"square","width":1,"color":"red"}],"frame":null})");
  EXPECT_EQ(write_record(parse_record<Drawing>(json)), json);
}

TEST(WriteRecord, Keeps_all_digits_of_a_double) {
  for (const double value : {0.1, 1.0 / 3.0, 2.5e-4, 1e300, std::numeric_limits<double>::denorm_min()}) {
    const auto text = write_record(Circle{.radius = value}).dump();
    EXPECT_EQ(parse_record<Circle>(Json::parse(text)).radius, value) << text;
  }
}

TEST(JsonSchema, Describes_types_ranges_defaults_and_tags) {
  EXPECT_EQ(json_schema<Drawing>(), Json::parse(R"({
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "Drawing",
    "type": "object",
    "properties": {
      "name": {"type": "string"},
      "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
      "count": {"type": "integer", "minimum": 1.0, "default": 3},
      "shapes": {"type": "array", "items": {"oneOf": [
        {"title": "Circle", "type": "object",
         "properties": {"shape": {"const": "circle"}, "radius": {"type": "number", "exclusiveMinimum": 0.0}},
         "required": ["shape", "radius"], "additionalProperties": false},
        {"title": "Square", "type": "object",
         "properties": {"shape": {"const": "square"}, "width": {"type": "integer", "default": 1},
                        "color": {"enum": ["red", "dark_blue"], "default": "red"}},
         "required": ["shape"], "additionalProperties": false}]}, "default": []},
      "frame": {"anyOf": [{"oneOf": [
        {"title": "Circle", "type": "object",
         "properties": {"shape": {"const": "circle"}, "radius": {"type": "number", "exclusiveMinimum": 0.0}},
         "required": ["shape", "radius"], "additionalProperties": false},
        {"title": "Square", "type": "object",
         "properties": {"shape": {"const": "square"}, "width": {"type": "integer", "default": 1},
                        "color": {"enum": ["red", "dark_blue"], "default": "red"}},
         "required": ["shape"], "additionalProperties": false}]}, {"type": "null"}], "default": null}
    },
    "required": ["name", "note"],
    "additionalProperties": false})"));
}

TEST(JsonSchema, Lists_flattened_keys_beside_the_record_s_own) {
  const Json schema = json_schema<FileSource>();
  EXPECT_EQ(schema["required"], Json::parse(R"(["kind", "file", "low"])"));
  EXPECT_TRUE(schema["properties"].contains("high"));
}

}  // namespace
}  // namespace d9d::record_json_test
