#include "d9d/lr_scheduler/config.h"

#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/base/config/record_json.h"
#include "d9d/lr_scheduler/schedule_phases.h"

namespace d9d::config_test {
namespace {

constexpr const char* kCurve = R"({"initial_multiplier": 0, "phases": [
  {"mode": "steps", "steps": 100, "target_multiplier": 1, "curve": {"type": "linear"}},
  {"mode": "percentage", "percentage": 0.7, "target_multiplier": 0.5, "curve": {"type": "poly"}},
  {"mode": "rest", "target_multiplier": 0.001, "curve": {"type": "exponential"}}]})";

LRSchedulerConfig parse(const Json& json) { return parse_record<LRSchedulerConfig>(json); }

TEST(LRSchedulerConfig, Reads_all_phases_with_and_without_a_name) {
  const Json curve = Json::parse(kCurve);
  for (const auto& config : {parse(curve), parse({{"name", "piecewise"}, {"scheduler", curve}})}) {
    const auto& phases = schedule_phases(config, std::nullopt).piecewise.phases;
    ASSERT_EQ(phases.size(), 3U);
    EXPECT_EQ(std::get<StepsPhaseConfig>(phases[0]).steps, 100);
    EXPECT_EQ(std::get<PolyCurveConfig>(std::get<PercentagePhaseConfig>(phases[1]).curve).power, 2.0);
    EXPECT_EQ(std::get<RestPhaseConfig>(phases[2]).target_multiplier, 0.001);
  }
}

TEST(LRSchedulerConfig, Refuses_phases_that_cannot_last) {
  for (const char* phase :
       {R"({"mode": "steps", "steps": 0, "target_multiplier": 1, "curve": {"type": "linear"}})",
        R"({"mode": "percentage", "percentage": 1.1, "target_multiplier": 1, "curve": {"type": "linear"}})",
        R"({"mode": "rest", "target_multiplier": 1, "curve": {}})",
        R"({"mode": "rest", "target_multiplier": -0.1, "curve": {"type": "linear"}})",
        R"({"mode": "rest", "steps": 1, "target_multiplier": 1, "curve": {"type": "linear"}})"}) {
    EXPECT_THROW(std::ignore = parse({{"initial_multiplier", 0}, {"phases", Json::array({Json::parse(phase)})}}),
                 ConfigError)
        << phase;
  }
}

}  // namespace
}  // namespace d9d::config_test
