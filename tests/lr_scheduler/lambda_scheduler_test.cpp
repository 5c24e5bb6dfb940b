#include "d9d/lr_scheduler/lambda_scheduler.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "d9d/base/check.h"

namespace d9d::lambda_scheduler_test {
namespace {

double one_tenth_a_step(std::int64_t step) { return 0.1 * static_cast<double>(step); }

TEST(LambdaScheduler, Starts_at_step_zero_and_moves_by_step) {
  LambdaScheduler scheduler(one_tenth_a_step);
  EXPECT_EQ(scheduler.factor(), 0);
  scheduler.step();
  EXPECT_EQ(scheduler.factor(), 0.1);
}

TEST(LambdaScheduler, Resumes_where_it_was) {
  LambdaScheduler scheduler(one_tenth_a_step);
  for (int i = 0; i < 7; ++i) scheduler.step();
  LambdaScheduler resumed(one_tenth_a_step);
  resumed.load_state(nlohmann::ordered_json::parse(scheduler.state().dump()));
  EXPECT_EQ(resumed.factor(), scheduler.factor());
}

TEST(LambdaScheduler, Follows_an_edited_schedule_from_the_resume_on) {
  LambdaScheduler resumed([](std::int64_t step) { return 100.0 - static_cast<double>(step); });
  resumed.load_state({{"num_steps", 7}});
  EXPECT_EQ(resumed.factor(), 93);
}

TEST(LambdaScheduler, Refuses_a_state_that_is_not_its_own) {
  LambdaScheduler scheduler(one_tenth_a_step);
  EXPECT_THROW(scheduler.load_state(nullptr), StateError);
  EXPECT_THROW(scheduler.load_state({{"last_epoch", 3}}), StateError);
  EXPECT_THROW(scheduler.load_state({{"num_steps", -1}}), StateError);
  EXPECT_THROW(scheduler.load_state({{"num_steps", "3"}}), StateError);
}

}  // namespace
}  // namespace d9d::lambda_scheduler_test
