#include "d9d/base/log.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace d9d::log_test {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::MatchesRegex;

TEST(Logger, Puts_qualifier_time_and_level_before_the_message) {
  std::vector<std::string> lines;
  const Logger log({.qualifier = "pp:0-tp:3", .sink = [&](std::string_view line) { lines.emplace_back(line); }});
  log.info("resumed from step ", 40);
  EXPECT_THAT(lines, ElementsAre(MatchesRegex(
                         R"(\[d9d\] \[pp:0-tp:3\] [0-9][0-9]:[0-9][0-9]:[0-9][0-9] - INFO - resumed from step 40)")));
}

TEST(Logger, Drops_lines_below_its_level) {
  std::vector<std::string> lines;
  const Logger log({.min_level = LogLevel::kWarning, .sink = [&](std::string_view line) { lines.emplace_back(line); }});
  log.debug("a");
  log.info("b");
  log.warning("c");
  log.error("d");
  EXPECT_THAT(lines, ElementsAre(EndsWith(" - WARNING - c"), EndsWith(" - ERROR - d")));
}

TEST(Logger, Writes_to_standard_error_by_default) {
  ::testing::internal::CaptureStderr();
  Logger().info("hello");
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), EndsWith(" - INFO - hello\n"));
}

}  // namespace
}  // namespace d9d::log_test
