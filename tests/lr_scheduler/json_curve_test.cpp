// Compares the multiplier of each step, computed from the JSON of a job file, with closed forms.
#include <cmath>
#include <fstream>
#include <functional>
#include <numbers>

#include <gtest/gtest.h>

#include "d9d/base/config/json_text.h"
#include "d9d/base/config/record_json.h"
#include "d9d/lr_scheduler/build_lr_scheduler.h"

namespace d9d::json_curve_test {
namespace {

constexpr double kTolerance = 1e-15;  // for multipliers of about 1 that a few operations in another order yield

// Interpolates from a to b at progress p from 0 to 1.
double line(double a, double b, double p) { return a + (b - a) * p; }
double half_cosine(double a, double b, double p) { return b + (a - b) * (1 + std::cos(std::numbers::pi * p)) / 2; }

void expect_curve(const Json& lr_scheduler, std::int64_t total_steps,
                  const std::function<double(double step)>& expected) {
  LearningRateScheduler scheduler = build_lr_scheduler(parse_record<LRSchedulerConfig>(lr_scheduler), total_steps);
  for (std::int64_t step = 0; step < total_steps; ++step) {
    EXPECT_NEAR(scheduler.factor(), expected(static_cast<double>(step)), kTolerance) << "step " << step;
    scheduler.step();
  }
}

Json section_of(const std::string& path) {
  std::ifstream file(path);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  return parse_json_text(text, path).at("lr_scheduler");
}

TEST(LRSchedulerJson, Of_the_shipped_pretraining_jobs_warms_up_in_20_steps_and_falls_to_a_tenth) {
  for (const char* model : {"qwen3_dense", "qwen3_moe"}) {
    expect_curve(section_of(std::string("examples/") + model + "/pretrain/pretrain.json"), 300, [](double step) {
      return step < 20 ? line(0.02, 1, step / 20) : half_cosine(1, 0.1, (step - 20) / 280);
    });
  }
}

TEST(LRSchedulerJson, Of_the_shipped_custom_model_falls_from_the_first_step) {
  expect_curve(section_of("examples/custom_model/config.json"), 150,
               [](double step) { return half_cosine(1, 0.1, step / 150); });
}

// The schedule in the pretraining example of d9d 0.16.
TEST(LRSchedulerJson, In_percentages_warms_up_holds_and_falls) {
  const Json json = Json::parse(R"({"name": "piecewise", "scheduler": {"initial_multiplier": 0, "phases": [
    {"mode": "percentage", "percentage": 0.1, "target_multiplier": 1.0, "curve": {"type": "linear"}},
    {"mode": "percentage", "percentage": 0.7, "target_multiplier": 1.0, "curve": {"type": "linear"}},
    {"mode": "rest", "target_multiplier": 0.001, "curve": {"type": "cosine"}}]}})");
  expect_curve(json, 200, [](double step) {
    if (step < 20) return line(0, 1, step / 20);
    return step < 140 ? 1.0 : half_cosine(1, 0.001, (step - 140) / 60);
  });
}

// The example in d9d's page on piecewise schedules.
TEST(LRSchedulerJson, In_steps_without_a_name_warms_up_and_falls) {
  const Json json = Json::parse(R"({"initial_multiplier": 0.0, "phases": [
    {"mode": "steps", "steps": 100, "target_multiplier": 1.0, "curve": {"type": "linear"}},
    {"mode": "rest", "target_multiplier": 0.1, "curve": {"type": "cosine"}}]})");
  expect_curve(json, 1000, [](double step) {
    return step < 100 ? line(0, 1, step / 100) : half_cosine(1, 0.1, (step - 100) / 900);
  });
}

TEST(LRSchedulerJson, Of_each_curve_follows_its_formula) {
  const auto rest = [](const char* curve) {
    return Json{{"initial_multiplier", 0.5},
                {"phases", {{{"mode", "rest"}, {"target_multiplier", 0.02}, {"curve", Json::parse(curve)}}}}};
  };
  expect_curve(rest(R"({"type": "poly"})"), 40, [](double step) { return line(0.5, 0.02, std::pow(step / 40, 2)); });
  expect_curve(rest(R"({"type": "poly", "power": 0.5})"), 40,
               [](double step) { return line(0.5, 0.02, std::sqrt(step / 40)); });
  expect_curve(rest(R"({"type": "exponential"})"), 40,
               [](double step) { return 0.5 * std::pow(0.02 / 0.5, step / 40); });
}

}  // namespace
}  // namespace d9d::json_curve_test
