#include "d9d/core/launch/launch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/program.h"

namespace d9d::test::launch_test {
namespace {

using ::testing::HasSubstr;

const TestProgram kThrowsNumber("throws_a_number", [] {
  return launch({.device = DeviceChoice::kCpu}, {}, [](DistContext& /*context*/) { throw 7; });
});

TEST(Launch, Reports_what_is_no_exception) {
  const Result result = Program("throws_a_number", {}).wait();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.errors, HasSubstr("error: an exception that is no std::exception"));
}

const TestProgram kManyThreads("many_threads", [] {
  return launch({.device = DeviceChoice::kCpu, .num_threads = 100'000}, {}, [](DistContext& /*context*/) {});
});

TEST(Launch, Refuses_more_threads_than_would_ever_run) {
  const Result result = Program("many_threads", {}).wait();
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.errors, HasSubstr("expected launch.num_threads of at most"));
}

}  // namespace
}  // namespace d9d::test::launch_test
