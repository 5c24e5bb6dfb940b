#include "d9d/core/error/error_place.h"

#include <stdexcept>
#include <thread>

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"

namespace d9d::error_place_test {
namespace {

// The line that a program would print about what `work` throws within two places.
template <class Work>
std::string line_of(const Work& work) {
  try {
    try {
      with_error_place("in forward", [&] { with_error_place("in layers.0", work); });
    } catch (const std::exception&) {
      add_error_place("microbatch 3");
      throw;
    }
  } catch (const std::exception& error) {
    return error_line(error);
  }
  return "";
}

TEST(ErrorPlace, Is_the_innermost_and_what_is_added_to_it) {
  EXPECT_EQ(line_of([] { throw ConfigError("[a] expected 1, got 2."); }),
            "[a] expected 1, got 2. (in layers.0, microbatch 3)");
}

TEST(ErrorPlace, Keeps_the_kind_of_the_error) {
  EXPECT_THROW(with_error_place("in forward", [] { throw IoError("full"); }), IoError);
  EXPECT_THROW(with_error_place("in forward",
                                [] {
                                  throw c10::IndexError({__func__, __FILE__, __LINE__}, "far");
                                }),
               c10::IndexError);
}

TEST(ErrorPlace, Is_added_to_errors_of_libtorch_without_their_stack) {
  EXPECT_EQ(line_of([] {
              (void)at::ones({2, 3}).view({4, 4});
            }),
            "shape '[4, 4]' is invalid for input of size 6 (in layers.0, microbatch 3)");
}

TEST(ErrorPlace, Is_kept_beside_exceptions_of_others) {
  EXPECT_EQ(line_of([] { throw std::out_of_range("map::at"); }), "map::at (in layers.0, microbatch 3)");
  struct OwnError : std::runtime_error {
    using std::runtime_error::runtime_error;
  };
  EXPECT_EQ(line_of([] { throw OwnError("boom\nof the user"); }), "boom of the user (in layers.0, microbatch 3)");
  EXPECT_THROW(with_error_place("in forward", [] { throw OwnError("boom"); }), OwnError);
}

TEST(ErrorPlace, Of_exceptions_of_others_goes_from_thread_to_thread) {
  std::exception_ptr thrown;
  std::thread([&] {
    try {
      with_error_place("in layers.0", [] { throw std::out_of_range("map::at"); });
    } catch (...) {
      thrown = std::current_exception();
    }
  }).join();
  EXPECT_EQ(line_of([&] { std::rethrow_exception(thrown); }), "map::at (in layers.0, microbatch 3)");
  EXPECT_EQ(line_of([] { throw std::out_of_range("another"); }), "another (in layers.0, microbatch 3)");
}

TEST(ErrorPlace, Of_memory_that_is_short_says_what_helps) {
  constexpr std::int64_t kMoreThanAnyMachineHas = std::int64_t{1} << 46;
  EXPECT_THAT(line_of([] { (void)at::empty({kMoreThanAnyMachineHas}, at::kDouble); }),
              ::testing::AllOf(::testing::HasSubstr("(in layers.0, microbatch 3)"), ::testing::HasSubstr("d9d_plan")));
}

TEST(ErrorPlace, Passes_results_on) {
  EXPECT_EQ(with_error_place("in forward", [] { return 7; }), 7);
}

TEST(ErrorLine, Is_all_of_an_error_in_one_line) {
  EXPECT_EQ(error_line(StateError("one\ntwo\x0f.\n")), "one two .");
  EXPECT_EQ(error_line(ConfigError("whole")), "whole");
}

}  // namespace
}  // namespace d9d::error_place_test
