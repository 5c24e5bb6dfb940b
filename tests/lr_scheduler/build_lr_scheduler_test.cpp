#include "d9d/lr_scheduler/build_lr_scheduler.h"

#include <fstream>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "d9d/base/check.h"

#include "tests/support/python.h"

namespace d9d::build_lr_scheduler_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Json = nlohmann::ordered_json;

constexpr double kTolerance = 1e-12;

std::vector<double> learning_rates(const LRSchedulerConfig& config, std::int64_t total_steps, double base,
                                   std::int64_t num_steps) {
  LearningRateScheduler scheduler = build_lr_scheduler(config, total_steps);
  std::vector<double> rates;
  for (std::int64_t i = 0; i < num_steps; ++i) {
    rates.push_back(base * scheduler.factor());
    scheduler.step();
  }
  return rates;
}

void expect_near(const std::vector<double>& rates, const Json& expected, const std::string& what) {
  ASSERT_EQ(rates.size(), expected.size());
  for (std::size_t i = 0; i < rates.size(); ++i) {
    EXPECT_NEAR(rates[i], expected[i].get<double>(), kTolerance) << what << ", step " << i;
  }
}

// One random schedule, as a record and as equivalent JSON.
struct Sample {
  PiecewiseConfig config;
  Json json;
};

class SampleSource {
 public:
  Sample draw() {
    const std::int64_t total_steps = integer(1, 60);
    Sample sample;
    sample.config.initial_multiplier = value();
    sample.json = {{"total_steps", total_steps},
                   {"num_steps", total_steps + 3},
                   {"base", 0.1 + value()},
                   {"initial_multiplier", sample.config.initial_multiplier},
                   {"phases", Json::array()}};
    for (std::int64_t cursor = 0; cursor < total_steps && integer(0, 4) > 0;) add_phase(sample, total_steps, cursor);
    if (sample.config.phases.empty()) add_rest(sample);
    return sample;
  }

 private:
  std::int64_t integer(std::int64_t min, std::int64_t max) {
    return std::uniform_int_distribution<std::int64_t>(min, max)(engine_);
  }
  double value() { return integer(0, 4) == 0 ? 0 : std::uniform_real_distribution(0.0, 2.0)(engine_); }

  std::pair<CurveConfig, Json> curve() {
    switch (integer(0, 3)) {
      case 0:
        return {LinearCurveConfig{}, {{"type", "linear"}}};
      case 1:
        return {CosineCurveConfig{}, {{"type", "cosine"}}};
      case 2:
        return {ExponentialCurveConfig{}, {{"type", "exponential"}}};
      default: {
        const double power = 0.1 + value();
        return {PolyCurveConfig{.power = power}, {{"type", "poly"}, {"power", power}}};
      }
    }
  }

  void add_phase(Sample& sample, std::int64_t total_steps, std::int64_t& cursor) {
    const auto [config, json] = curve();
    const double target = value();
    if (integer(0, 1) == 0) {
      const std::int64_t steps = integer(1, total_steps - cursor);
      cursor += steps;
      sample.config.phases.emplace_back(StepsPhaseConfig{.steps = steps, .target_multiplier = target, .curve = config});
      sample.json["phases"].push_back(
          {{"mode", "steps"}, {"steps", steps}, {"target_multiplier", target}, {"curve", json}});
    } else {
      const double fraction = std::uniform_real_distribution(0.0, 1.0)(engine_);
      const auto end = static_cast<std::int64_t>(static_cast<double>(total_steps) * fraction);
      if (end <= cursor) return;
      cursor = end;
      sample.config.phases.emplace_back(
          PercentagePhaseConfig{.percentage = fraction, .target_multiplier = target, .curve = config});
      sample.json["phases"].push_back(
          {{"mode", "percentage"}, {"percentage", fraction}, {"target_multiplier", target}, {"curve", json}});
    }
  }

  void add_rest(Sample& sample) {
    const auto [config, json] = curve();
    const double target = value();
    sample.config.phases.emplace_back(RestPhaseConfig{.target_multiplier = target, .curve = config});
    sample.json["phases"].push_back({{"mode", "rest"}, {"target_multiplier", target}, {"curve", json}});
  }

  std::mt19937_64 engine_{1337};
};

TEST(BuildLrScheduler, Gives_the_learning_rates_of_torch_optim) {
  SampleSource source;
  std::vector<Sample> samples;
  Json all = Json::array();
  for (int i = 0; i < 200; ++i) {
    samples.push_back(source.draw());
    all.push_back(samples.back().json);
  }
  const std::string path = ::testing::TempDir() + "d9d_random_lr_schedules.json";
  std::ofstream(path) << all;
  const auto expected = Json::parse(test::run_python("tests/lr_scheduler/lambda_lr.py", {path}));

  ASSERT_EQ(expected.at("piecewise").size(), samples.size());
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const Json& json = samples[i].json;
    expect_near(learning_rates(samples[i].config, json["total_steps"], json["base"], json["num_steps"]),
                expected["piecewise"][i], json.dump());
  }

  const std::vector<std::pair<std::string, CurveConfig>> curves = {
      {"linear", LinearCurveConfig{}}, {"cosine", CosineCurveConfig{}}, {"exponential", ExponentialCurveConfig{}}};
  for (const auto& [name, curve] : curves) {
    const PiecewiseConfig config{.initial_multiplier = 1,
                                 .phases = {RestPhaseConfig{.target_multiplier = 0.25, .curve = curve}}};
    expect_near(learning_rates(config, 20, 0.1, 20), expected["curves"].at(name), name);
  }
}

TEST(BuildLrScheduler, Takes_the_named_form_too) {
  const PiecewiseSchedulerConfig config{
      .scheduler = {.initial_multiplier = 0, .phases = {StepsPhaseConfig{.steps = 2, .curve = LinearCurveConfig{}}}}};
  EXPECT_EQ(learning_rates(config, 10, 1, 4), (std::vector<double>{0, 0.5, 1, 1}));
}

TEST(BuildLrScheduler, Needs_the_total_only_for_fractions) {
  const PiecewiseConfig steps{.phases = {StepsPhaseConfig{}}};
  const PiecewiseConfig rest{.phases = {RestPhaseConfig{}}};
  EXPECT_NO_THROW((void)build_lr_scheduler(steps, std::nullopt));
  EXPECT_THROW((void)build_lr_scheduler(rest, std::nullopt), ConfigError);
}

std::string error_of(const PiecewiseConfig& config, std::int64_t total_steps) {
  try {
    (void)build_lr_scheduler(config, total_steps);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(BuildLrScheduler, Refuses_a_phase_without_a_step_by_its_key) {
  const PercentagePhaseConfig until_60{.percentage = 0.6};
  const RestPhaseConfig rest{.target_multiplier = 0};
  const auto error = [](std::vector<PhaseConfig> phases, std::int64_t total_steps = 100) {
    return error_of({.phases = std::move(phases)}, total_steps);
  };
  EXPECT_EQ(
      error({until_60, until_60, rest}),
      "[lr_scheduler] expected each phase to have a step, got none: phases.1 ends where phases.0 ends, at step 60 "
      "of 100 (60 %). `percentage` counts from the start of the run: raise it, or leave out the phase.");
  EXPECT_THAT(error({rest, rest}), HasSubstr("phases.1 ends where phases.0 ends, at step 100 of 100 (100 %). Shorten"));
  EXPECT_THAT(error({PercentagePhaseConfig{.percentage = 1}, rest}), HasSubstr("phases.1 ends where phases.0 ends"));
  EXPECT_THAT(error({PercentagePhaseConfig{.percentage = 0}, rest}),
              HasSubstr("phases.0 ends where the run begins, at step 0 of 100 (0 %). `percentage` counts"));
  const PercentagePhaseConfig until_29{.percentage = 0.29};  // 0.29 * 100 is less than 29 in double
  EXPECT_THAT(error({until_29, until_29, rest}), HasSubstr("phases.1 ends where phases.0 ends"));
  EXPECT_EQ(error({PercentagePhaseConfig{.percentage = 0.1}, until_60, rest}), "no error");
}

// Such as a trial run: it is too short for the schedule of the whole.
TEST(BuildLrScheduler, Names_phases_for_which_the_run_is_too_short) {
  const RestPhaseConfig rest{.target_multiplier = 0};
  const auto empty = [](std::vector<PhaseConfig> phases, std::int64_t total_steps) {
    return phases_without_a_step(build_piecewise_schedule(PiecewiseConfig{.phases = std::move(phases)}, total_steps),
                                 total_steps);
  };
  EXPECT_THAT(empty({StepsPhaseConfig{.steps = 2}, rest}, 2),
              ElementsAre("phases.1 ends where phases.0 ends, at step 2 of 2 (100 %)"));
  EXPECT_THAT(empty({PercentagePhaseConfig{.percentage = 0.1}, rest}, 5),
              ElementsAre("phases.0 ends where the run begins, at step 0 of 5 (0 %)"));
  EXPECT_THAT(empty({StepsPhaseConfig{.steps = 2}, rest}, 3), IsEmpty());
}

TEST(BuildLrScheduler, Describes_its_corners) {
  const PiecewiseConfig config{
      .initial_multiplier = 0,
      .phases = {PercentagePhaseConfig{.percentage = 0.1, .target_multiplier = 1, .curve = LinearCurveConfig{}},
                 RestPhaseConfig{.target_multiplier = 0.001, .curve = CosineCurveConfig{}}}};
  EXPECT_EQ(describe(build_piecewise_schedule(config, 200)),
            "0 in step 0, linear to 1 in step 20, cosine to 0.001 in step 200");
}

}  // namespace
}  // namespace d9d::build_lr_scheduler_test
