#include "d9d/loop/task/job_schedule.h"

#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "d9d/base/check.h"

namespace d9d::job_schedule_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

JobSchedule schedule_at(std::int64_t current_step, std::int64_t total_steps) {
  JobSchedule schedule(total_steps);
  schedule.load_state({{"current_step", current_step}});
  return schedule;
}

std::string config_error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const ConfigError& error) {
    return error.what();
  }
  ADD_FAILURE() << "no ConfigError";
  return "";
}

TEST(TotalSteps, Come_from_the_configuration_else_from_the_data) {
  EXPECT_EQ(total_steps_of(10, std::nullopt), 10);
  EXPECT_EQ(total_steps_of(10, 10), 10);
  EXPECT_EQ(total_steps_of(10, 20), 10);
  EXPECT_EQ(total_steps_of(std::nullopt, 20), 20);
}

TEST(TotalSteps, Beyond_the_data_are_refused_naming_both_numbers) {
  EXPECT_THAT(config_error_of([] { (void)total_steps_of(21, 20); }), AllOf(HasSubstr("20"), HasSubstr("21")));
}

TEST(TotalSteps, Known_from_neither_are_refused) {
  EXPECT_THAT(config_error_of([] { (void)total_steps_of(std::nullopt, std::nullopt); }),
              HasSubstr("schedule.total_steps"));
}

constexpr StepActionPeriod every(std::int64_t steps) { return {EverySteps{steps}}; }
constexpr StepActionPeriod kLastStep = {StepActionMode::kLastStep};
constexpr StepActionPeriod kDisabled = {StepActionMode::kDisable};
constexpr StepActionRules kBefore = {};
constexpr StepActionRules kAfter = {.after_advance = true};
constexpr StepActionRules kBeforeAndLast = {.always_at_last_step = true};
constexpr StepActionRules kAfterAndLast = {.always_at_last_step = true, .after_advance = true};

struct Row {
  std::int64_t current_step;
  std::int64_t total_steps;
  StepActionPeriod period;
  StepActionRules rules;
  bool is_due;
};

const std::vector<Row> kTruthTable = {
    // a period, before advance(): at every 5th step counted from 1
    Row{0, 20, every(5), kBefore, false}, Row{3, 20, every(5), kBefore, false}, Row{4, 20, every(5), kBefore, true},
    Row{5, 20, every(5), kBefore, false}, Row{9, 20, every(5), kBefore, true}, Row{14, 20, every(5), kBefore, true},
    Row{19, 20, every(5), kBefore, true}, Row{0, 20, every(1), kBefore, true},
    // after advance()
    Row{4, 20, every(5), kAfter, false}, Row{5, 20, every(5), kAfter, true}, Row{6, 20, every(5), kAfter, false},
    Row{10, 20, every(5), kAfter, true}, Row{15, 20, every(5), kAfter, true}, Row{20, 20, every(5), kAfter, true},
    // a period that does not divide the total
    Row{11, 12, every(5), kBefore, false}, Row{11, 12, every(5), kBeforeAndLast, true},
    Row{12, 12, every(5), kAfter, false}, Row{12, 12, every(5), kAfterAndLast, true},
    Row{10, 12, every(5), kBeforeAndLast, false},
    // the last step only
    Row{8, 10, kLastStep, kBefore, false}, Row{9, 10, kLastStep, kBefore, true}, Row{9, 10, kLastStep, kAfter, false},
    Row{10, 10, kLastStep, kAfter, true},
    // never, not even at the last step
    Row{9, 10, kDisabled, kBeforeAndLast, false}, Row{10, 10, kDisabled, kAfterAndLast, false}};

TEST(JobSchedule, Actions_are_due_as_the_truth_table_says) {
  for (const Row& row : kTruthTable) {
    EXPECT_EQ(schedule_at(row.current_step, row.total_steps).should_do_action(row.period, row.rules), row.is_due)
        << "row " << &row - kTruthTable.data() << ": step " << row.current_step << " of " << row.total_steps;
  }
}

TEST(JobSchedule, Refuses_periods_that_are_not_positive) {
  EXPECT_THROW((void)JobSchedule(10).should_do_action(every(0)), ConfigError);
  EXPECT_THROW((void)JobSchedule(10).should_do_action(every(-5)), ConfigError);
}

TEST(JobSchedule, Refuses_a_job_without_steps) {
  EXPECT_THROW(JobSchedule(0), ConfigError);
  EXPECT_THROW(JobSchedule(-1), ConfigError);
}

TEST(JobSchedule, Is_done_after_its_steps) {
  JobSchedule schedule(2);
  schedule.advance();
  EXPECT_FALSE(schedule.is_done());
  schedule.advance();
  EXPECT_TRUE(schedule.is_done());
  EXPECT_EQ(schedule.current_step(), 2);
}

TEST(JobSchedule, Resumes_at_its_step_with_another_budget) {
  JobSchedule schedule(10);
  for (int i = 0; i < 10; ++i) schedule.advance();
  JobSchedule longer(20);
  longer.load_state(schedule.state());
  EXPECT_EQ(longer.current_step(), 10);
  EXPECT_EQ(longer.total_steps(), 20);
  EXPECT_FALSE(longer.is_done());
  JobSchedule shorter(5);
  EXPECT_THAT(
      [&] { shorter.load_state(schedule.state()); },
      ThrowsMessage<ConfigError>(HasSubstr("expected at least 10 steps in all, which the checkpoint has done")));
}

TEST(JobSchedule, Refuses_a_state_that_is_not_its_own) {
  JobSchedule schedule(10);
  EXPECT_THROW(schedule.load_state(nullptr), StateError);
  EXPECT_THROW(schedule.load_state({{"step", 3}}), StateError);
  EXPECT_THROW(schedule.load_state({{"current_step", -1}}), StateError);
}

TEST(JobSchedule, Without_step_refuses_to_tell_it) {
  const JobSchedule schedule = schedule_at(3, 10).without_step();
  EXPECT_EQ(schedule.total_steps(), 10);
  EXPECT_THAT(config_error_of([&] { (void)schedule.current_step(); }), HasSubstr("Set trainer.cuda_graph to null"));
  EXPECT_THAT(config_error_of([&] { (void)schedule.should_do_action(every(1), kBefore); }), HasSubstr("cuda_graph"));
}

}  // namespace
}  // namespace d9d::job_schedule_test
