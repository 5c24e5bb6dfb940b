// Schedules by name: against transformers and torch, in random runs, and what is refused.
#include <fstream>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "d9d/base/check.h"
#include "d9d/base/config/record_json.h"
#include "d9d/lr_scheduler/build_lr_scheduler.h"

#include "tests/support/python.h"

namespace d9d::named_schedules_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr double kTolerance = 1e-12;  // for multipliers of at most 1 that a few operations in another order yield

PiecewiseSchedule schedule_of(const Json& json, std::int64_t num_steps) {
  return build_piecewise_schedule(parse_record<LRSchedulerConfig>(json), num_steps);
}

// Random named schedules, each with the number of steps of its run.
class Source {
 public:
  explicit Source(std::uint32_t seed) : random_(seed) {}

  std::pair<Json, std::int64_t> draw() {
    const std::int64_t num_steps = integer(10, 60), warmup = integer(0, 3) == 0 ? 0 : integer(1, num_steps / 2);
    const char* const name = std::array{"constant", "linear", "cosine", "wsd", "inverse_sqrt"}.at(integer(0, 4));
    Json json = {{"name", name}};
    if (warmup > 0) json["warmup_steps"] = warmup;
    if (json["name"] == "inverse_sqrt") {
      if (warmup == 0 || integer(0, 1) == 1) json["timescale"] = integer(1, 100);
    } else if (json["name"] != "constant") {
      if (integer(0, 1) == 1) json["min_ratio"] = static_cast<double>(integer(0, 100)) / 100;
    }
    if (json["name"] == "wsd") {
      json["decay_steps"] = integer(1, num_steps - warmup);
      const std::array<Json, 3> curves = {Json{{"type", "linear"}}, Json{{"type", "cosine"}},
                                          Json{{"type", "poly"}, {"power", 0.5}}};
      json["decay_curve"] = curves.at(integer(0, 2));
    }
    return {json, num_steps};
  }

 private:
  std::int64_t integer(std::int64_t first, std::int64_t last) {
    return std::uniform_int_distribution<std::int64_t>(first, last)(random_);
  }

  std::mt19937 random_;
};

TEST(NamedSchedules, Have_the_rates_of_transformers_and_torch) {
  Source source(1);
  Json all = Json::array();
  for (int i = 0; i < 300; ++i) {
    const auto [json, num_steps] = source.draw();
    all.push_back(Json::array({json, num_steps}));
  }
  const std::string path = ::testing::TempDir() + "d9d_named_lr_schedules.json";
  std::ofstream(path) << all;
  const Json expected = Json::parse(test::run_python("tests/lr_scheduler/named_lr.py", {path}));
  ASSERT_EQ(expected.size(), all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto num_steps = all[i][1].get<std::int64_t>();
    const PiecewiseSchedule schedule = schedule_of(all[i][0], num_steps);
    for (std::int64_t step = 0; step < num_steps; ++step) {
      EXPECT_NEAR(schedule.factor(step), expected[i][static_cast<std::size_t>(step)].get<double>(), kTolerance)
          << all[i].dump() << ", step " << step;
    }
  }
}

TEST(NamedSchedules, Rise_in_the_warm_up_then_never_rise_and_stay_between_their_smallest_ratio_and_one) {
  EXPECT_TRUE(rc::check([](std::uint32_t seed) {
    const auto [json, num_steps] = Source(seed).draw();
    const PiecewiseSchedule schedule = schedule_of(json, num_steps);
    const auto warmup = json.value("warmup_steps", std::int64_t{0});
    const double least = json.value("min_ratio", 0.0);
    for (std::int64_t step = 0; step < num_steps; ++step) {
      const double now = schedule.factor(step), next = schedule.factor(step + 1);
      RC_ASSERT(now >= 0 && now <= 1);
      const bool is_right = step < warmup ? next > now : next <= now + kTolerance;
      RC_ASSERT(is_right);
      if (step >= warmup) RC_ASSERT(now >= least - kTolerance);
    }
    RC_ASSERT(schedule.factor(warmup) == (warmup < num_steps ? 1.0 : schedule.factor(num_steps)));
  }));
}

TEST(NamedSchedules, Have_shares_of_the_run_that_are_cut_to_whole_steps) {
  const auto wsd = schedule_of({{"name", "wsd"}, {"warmup_share", 0.1}, {"decay_share", 0.25}}, 205);
  EXPECT_EQ(describe(wsd), "0 in step 0, linear to 1 in step 20, linear to 1 in step 154, linear to 0 in step 205");
  EXPECT_EQ(describe(schedule_of({{"name", "wsd"}, {"decay_share", 1}}, 7)), "1 in step 0, linear to 0 in step 7");
  EXPECT_EQ(describe(schedule_of({{"name", "constant"}}, 7)), "1 in step 0, linear to 1 in step 7");
  const auto constant = build_piecewise_schedule(ConstantScheduleConfig{.warmup = {.steps = 4}}, std::nullopt);
  EXPECT_EQ(constant.factor(1), 0.25);
  EXPECT_EQ(constant.factor(1000), 1);
}

TEST(NamedSchedules, Fall_with_the_root_of_the_steps_for_which_the_run_lasts) {
  const auto schedule = schedule_of({{"name", "inverse_sqrt"}, {"warmup_steps", 100}}, 1000);
  EXPECT_EQ(schedule.factor(50), 0.5);
  EXPECT_NEAR(schedule.factor(400), 0.5, kTolerance);
  EXPECT_NEAR(schedule.factor(900), 1.0 / 3, kTolerance);
}

TEST(NamedSchedules, That_do_not_fit_are_refused) {
  const auto error = [](const Json& json, std::int64_t num_steps = 100) {
    try {
      (void)schedule_of(json, num_steps);
    } catch (const ConfigError& refused) {
      return std::string(refused.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(error({{"name", "cosine"}, {"warmup_steps", 10}, {"warmup_share", 0.1}}),
              HasSubstr("expected warmup_steps or warmup_share, got 10 and 0.1"));
  EXPECT_THAT(error({{"name", "inverse_sqrt"}}), HasSubstr("expected timescale or a warm-up"));
  EXPECT_THAT(error({{"name", "wsd"}, {"warmup_steps", 60}, {"decay_steps", 41}}),
              HasSubstr("of at most 100 steps together, got 60 and 41"));
  EXPECT_THAT(error({{"name", "linear"}, {"warmup_steps", 101}}),
              HasSubstr("expected the warm-up to end within the run of total_steps = 100, got step 101"));
  EXPECT_THAT(error({{"name", "cosine"}, {"min_ratio", 1.5}}), HasSubstr("min_ratio"));
  EXPECT_THAT(error({{"name", "cosine"}, {"warmup", 3}}), HasSubstr("warmup"));
  EXPECT_THAT(error({{"type", "cosine"}}), HasSubstr("missing key 'name', which is one of 'piecewise', 'constant'"));
  EXPECT_THAT(error({{"name", "exponential"}}), HasSubstr("inverse_sqrt"));  // lists the names that there are
  EXPECT_THAT(error({{"name", "wsd"}, {"decay_curve", {{"type", "inverse_sqrt"}}}}),
              HasSubstr("at both ends of the inverse_sqrt curve of the decay"));
  EXPECT_THAT([] { (void)build_piecewise_schedule(CosineScheduleConfig{}, std::nullopt); },
              ThrowsMessage<ConfigError>(HasSubstr("expected total_steps")));
}

TEST(NamedSchedules, For_which_a_run_is_too_short_name_what_has_no_step) {
  const auto empty = [](const Json& json, std::int64_t num_steps) {
    return phases_without_a_step(schedule_of(json, num_steps), num_steps);
  };
  EXPECT_THAT(empty({{"name", "cosine"}, {"warmup_steps", 10}}, 10),
              ElementsAre("the decay ends where the warm-up ends, at step 10 of 10 (100 %)"));
  EXPECT_THAT(empty({{"name", "wsd"}, {"warmup_share", 0.1}, {"decay_share", 0.01}}, 50),
              ElementsAre("the decay ends where the stable phase ends, at step 50 of 50 (100 %)"));
}

}  // namespace
}  // namespace d9d::named_schedules_test
