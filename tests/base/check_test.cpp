#include "d9d/base/check.h"

#include <gtest/gtest.h>

namespace d9d::check_test {
namespace {

TEST(Check, Throws_the_named_error_with_all_parts) {
  try {
    D9D_CHECK(1 + 1 == 3, ConfigError, "[test] expected ", 3, ", got ", 2, ". Count again.");
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "[test] expected 3, got 2. Count again.");
  }
}

TEST(Check, Is_silent_when_the_condition_holds) { EXPECT_NO_THROW(D9D_CHECK(true, IoError, "unused")); }

TEST(Error, Has_its_places_on_the_first_line) {
  StateError error("[test] expected one line, got two:\nthe second");
  error.add_place("in layers.0");
  error.add_place("microbatch 3");
  EXPECT_STREQ(error.what(), "[test] expected one line, got two: (in layers.0, microbatch 3)\nthe second");
}

}  // namespace
}  // namespace d9d::check_test
