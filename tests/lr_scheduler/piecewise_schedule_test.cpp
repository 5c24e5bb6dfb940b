#include "d9d/lr_scheduler/piecewise_schedule.h"

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"

namespace d9d::piecewise_schedule_test {
namespace {

using ::testing::HasSubstr;

const CurveConfig kLinear = LinearCurveConfig{};

std::string config_error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const ConfigError& error) {
    return error.what();
  }
  ADD_FAILURE() << "no ConfigError";
  return "";
}

TEST(PiecewiseSchedule, Goes_through_phases_of_steps_fractions_and_the_rest) {
  const auto schedule = PiecewiseBuilder({.initial_multiplier = 0, .total_steps = 10})
                            .for_steps(2, 1.0, kLinear)
                            .until_percentage(0.5, 0.1, kLinear)
                            .fill_rest(0.01, kLinear)
                            .build();
  const std::vector<double> expected = {0, 0.5, 1, 0.7, 0.4, 0.1, 0.082, 0.064, 0.046, 0.028, 0.01};
  for (std::size_t step = 0; step < expected.size(); ++step) {
    EXPECT_NEAR(schedule.factor(static_cast<std::int64_t>(step)), expected[step], 1e-12) << "step " << step;
  }
}

TEST(PiecewiseSchedule, Warms_up_stays_and_decays_as_in_the_pretraining_example) {
  const auto schedule = PiecewiseBuilder({.initial_multiplier = 0, .total_steps = 100})
                            .until_percentage(0.1, 1.0, kLinear)
                            .until_percentage(0.7, 1.0, kLinear)
                            .fill_rest(0.001, CosineCurveConfig{})
                            .build();
  // Steps 77, 85 and 99 are 0.001 + 0.999 (1 + cos(pi p)) / 2 with p = 7/30, 15/30, 29/30.
  const std::vector<std::pair<std::int64_t, double>> expected = {{0, 0},
                                                                 {1, 0.1},
                                                                 {5, 0.5},
                                                                 {9, 0.9},
                                                                 {10, 1},
                                                                 {50, 1},
                                                                 {69, 1},
                                                                 {70, 1},
                                                                 {77, 0.8717008403259584},
                                                                 {85, 0.5005},
                                                                 {99, 0.0037363132635474918},
                                                                 {100, 0.001},
                                                                 {1000, 0.001}};
  for (const auto& [step, factor] : expected) EXPECT_NEAR(schedule.factor(step), factor, 1e-12) << "step " << step;
}

TEST(PiecewiseSchedule, Holds_its_first_value_before_and_its_last_value_after_its_phases) {
  const auto schedule = PiecewiseBuilder({.initial_multiplier = 0.25}).for_steps(4, 0.5, kLinear).build();
  EXPECT_EQ(schedule.factor(-1), 0.25);
  EXPECT_EQ(schedule.factor(4), 0.5);
  EXPECT_EQ(schedule.factor(1000000), 0.5);
}

TEST(PiecewiseSchedule, Jumps_over_a_phase_without_steps) {
  const auto schedule = PiecewiseBuilder({.initial_multiplier = 0, .total_steps = 10})
                            .until_percentage(0, 1.0, kLinear)
                            .fill_rest(0, kLinear)
                            .build();
  EXPECT_EQ(schedule.factor(0), 1);
  EXPECT_EQ(schedule.factor(5), 0.5);
}

struct Truncation {
  std::int64_t total_steps;
  double fraction;
  std::int64_t end_step;
};
class PercentageEnd : public ::testing::TestWithParam<Truncation> {};
INSTANTIATE_TEST_SUITE_P(Products, PercentageEnd,
                         ::testing::Values(Truncation{100, 0.29, 28}, Truncation{1000, 0.001, 1},
                                           Truncation{10, 0.7, 7}, Truncation{3, 0.9999999, 2},
                                           Truncation{57, 0.1, 5}));

TEST_P(PercentageEnd, Is_the_product_in_double_precision_cut_to_an_integer) {
  const auto [total_steps, fraction, end_step] = GetParam();
  const auto schedule = PiecewiseBuilder({.initial_multiplier = 0, .total_steps = total_steps})
                            .until_percentage(fraction, 1.0, kLinear)
                            .build();
  EXPECT_LT(schedule.factor(end_step - 1), 1);
  EXPECT_EQ(schedule.factor(end_step), 1);
}

TEST(PiecewiseBuilder, Refuses_fractions_of_an_unknown_total) {
  EXPECT_THAT(config_error_of([] { PiecewiseBuilder({}).until_percentage(0.5, 1, kLinear); }),
              HasSubstr("Set total_steps"));
  EXPECT_THAT(config_error_of([] { PiecewiseBuilder({}).fill_rest(1, kLinear); }), HasSubstr("Set total_steps"));
}

TEST(PiecewiseBuilder, Refuses_fractions_outside_their_range) {
  for (const double fraction : {-0.1, 1.1, std::nan("")}) {
    EXPECT_THAT(config_error_of([&] { PiecewiseBuilder({.total_steps = 10}).until_percentage(fraction, 1, kLinear); }),
                HasSubstr("range [0, 1]"));
  }
}

TEST(PiecewiseBuilder, Refuses_a_phase_that_ends_before_the_previous_one) {
  EXPECT_THAT(config_error_of([] {
                PiecewiseBuilder({.total_steps = 10}).for_steps(6, 1, kLinear).until_percentage(0.5, 1, kLinear);
              }),
              HasSubstr("phases.1 to end at or after step 6, where the previous one ends, got step 5 of total_steps = "
                        "10. Lengthen it, "
                        "shorten those before it, or raise total_steps."));
}

TEST(PiecewiseBuilder, Refuses_phases_longer_than_the_run) {
  EXPECT_THAT(config_error_of([] { PiecewiseBuilder({.total_steps = 10}).for_steps(11, 1, kLinear); }),
              HasSubstr("phases.0 to end within the run of total_steps = 10, got step 11. Shorten it"));
}

TEST(PiecewiseBuilder, Refuses_a_schedule_without_phases) {
  EXPECT_THAT(config_error_of([] { (void)PiecewiseBuilder({.total_steps = 10}).build(); }),
              HasSubstr("at least one phase"));
}

TEST(PiecewiseBuilder, Refuses_a_phase_of_no_steps) {
  EXPECT_THAT(config_error_of([] { PiecewiseBuilder({}).for_steps(0, 1, kLinear); }), HasSubstr("steps > 0"));
}

TEST(PiecewiseBuilder, Refuses_a_power_that_starts_at_infinity) {
  EXPECT_THAT(config_error_of([] { PiecewiseBuilder({}).for_steps(2, 1, PolyCurveConfig{.power = -1}); }),
              HasSubstr("power > 0"));
}

}  // namespace
}  // namespace d9d::piecewise_schedule_test
