#include "d9d/base/config/load_config.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/base/config/drawing.h"
#include "tests/support/io_faults.h"

namespace d9d::load_config_test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr const char* kDrawing = R"({"name": "a", "note": null, "shapes": [{"shape": "circle", "radius": 1}]})";

std::string drawing_file() {
  const std::string file = (test::fresh_directory("config") / "drawing.json").string();
  std::ofstream(file) << kDrawing;
  return file;
}

Drawing load(std::vector<std::string> arguments, const ConfigRewrite& rewrite = nullptr) {
  std::vector<const char*> argv = {"draw"};
  for (const auto& argument : arguments) argv.push_back(argument.c_str());
  return load_config<Drawing>(static_cast<int>(argv.size()), argv.data(), rewrite);
}

template <class Error>
std::string error_of(const std::vector<std::string>& arguments) {
  try {
    std::ignore = load(arguments);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(LoadRecord, Reads_a_file) { EXPECT_EQ(load_record<Drawing>(drawing_file()).name, "a"); }

TEST(LoadConfig, Reads_the_file_and_applies_overrides_in_order) {
  const auto drawing = load({drawing_file(), "name=b", "count=7", "count=8", "shapes.0.radius=2.5"});
  EXPECT_EQ(drawing.name, "b");
  EXPECT_EQ(drawing.count, 8);
  EXPECT_EQ(std::get<Circle>(drawing.shapes[0]).radius, 2.5);
}

TEST(LoadConfig, Takes_a_value_that_is_no_json_as_a_string) {
  EXPECT_EQ(load({drawing_file(), "name=runs/a=b, c"}).name, "runs/a=b, c");
  EXPECT_EQ(load({drawing_file(), "name="}).name, "");
  EXPECT_EQ(load({drawing_file(), "name=\"5\""}).name, "5");
}

TEST(LoadConfig, Creates_objects_on_the_way_of_an_override) {
  const auto drawing = load({drawing_file(), "frame.shape=square", "frame.width=4"});
  EXPECT_EQ(std::get<Square>(*drawing.frame).width, 4);
}

TEST(LoadConfig, Refuses_an_override_of_an_unknown_key) {
  EXPECT_EQ(error_of<ConfigError>({drawing_file(), "cuont=1"}),
            "[config] " + drawing_file() + " with overrides: unknown key 'cuont'. Did you mean 'count'?");
}

TEST(LoadConfig, Refuses_an_override_that_its_file_has_no_place_for) {
  EXPECT_EQ(error_of<ConfigError>({drawing_file(), "shapes.1.radius=1"}),
            "[config] override 'shapes.1.radius=1': expected the index of one of 1 list elements, got '1'. Change the "
            "path, or give the whole list.");
  EXPECT_EQ(
      error_of<ConfigError>({drawing_file(), "name.first=1"}),
      "[config] override 'name.first=1': expected an object or a list above 'first', got \"a\". Shorten the path.");
}

TEST(LoadConfig, Refuses_a_duplicate_key_in_an_override) {
  EXPECT_THAT(error_of<ConfigError>({drawing_file(), R"(frame={"shape": "square", "shape": "circle"})"}),
              HasSubstr("got 'shape' twice"));
}

TEST(LoadConfig, Refuses_a_command_line_without_a_file) {
  EXPECT_EQ(error_of<UsageError>({}),
            "[config] expected a configuration file, got no argument. Usage: draw CONFIG.json [key.path=value ...]");
  EXPECT_THAT(error_of<UsageError>({"name=b"}), HasSubstr("expected a configuration file first, got 'name=b'"));
  EXPECT_THAT(error_of<UsageError>({"--verbose"}), HasSubstr("expected a configuration file first, got '--verbose'"));
}

// Of folders that are named by what a run varies: runs/lr=0.1,bs=4/job.json.
TEST(LoadConfig, Takes_a_file_with_an_equals_sign_in_its_path) {
  const std::filesystem::path given = drawing_file(), folder = given.parent_path() / "lr=0.1,bs=4";
  std::filesystem::create_directories(folder);
  const std::filesystem::path file = folder / "a.json";
  std::filesystem::copy_file(given, file);
  EXPECT_EQ(load({file.string(), "name=b"}).name, "b");
  EXPECT_THAT(error_of<IoError>({(folder / "none.json").string()}), HasSubstr("lr=0.1,bs=4/none.json"));
}

TEST(LoadConfig, Refuses_an_argument_that_is_no_assignment) {
  for (const char* argument : {"count", "=1", "--count=1"}) {
    EXPECT_THAT(error_of<UsageError>({drawing_file(), argument}), HasSubstr("expected an override as key.path=value"));
  }
}

TEST(LoadConfig, Answers_help_with_usage_and_top_level_keys) {
  const auto help = error_of<HelpRequested>({"--help"});
  EXPECT_THAT(help, StartsWith("Usage: draw CONFIG.json [key.path=value ...]\n"));
  EXPECT_THAT(help, HasSubstr("  name\n  note\n  count\n  shapes\n  frame\n"));
}

TEST(LoadConfig, Answers_schema_with_the_schema) {
  EXPECT_EQ(Json::parse(error_of<HelpRequested>({"--schema"})), json_schema<Drawing>());
}

TEST(LoadConfig, Rewrites_the_json_after_the_overrides_and_prints_the_notes) {
  const auto rename = [](Json& config, const ConfigPath&) -> std::vector<std::string> {
    config["count"] = config["number"];
    config.erase("number");
    return {"number is read as count."};
  };
  ::testing::internal::CaptureStderr();
  const auto drawing = load({drawing_file(), "number=5"}, rename);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "[config] " + drawing_file() + " with overrides: number is read as count.\n");
  EXPECT_EQ(drawing.count, 5);
}

}  // namespace
}  // namespace d9d::load_config_test
