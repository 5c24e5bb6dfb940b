#include "d9d/lr_scheduler/plot_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/lr_scheduler/build_lr_scheduler.h"

namespace d9d::plot_schedule_test {
namespace {

using ::testing::HasSubstr;

PlottedSchedule plot_of(std::int64_t num_steps) {
  const CosineScheduleConfig config{.warmup = {.steps = num_steps / 10}, .min_ratio = 0.1};
  return {.title = "a < b",
          .schedule = build_piecewise_schedule(config, num_steps),
          .num_steps = num_steps,
          .learning_rate = 3e-4};
}

TEST(PlotSchedule, Connects_the_rates_of_the_scheduler) {
  for (const std::int64_t num_steps : {1, 2, 100, 123'456}) {
    const PlottedSchedule plot = plot_of(num_steps);
    const auto points = plotted_points(plot);
    const std::string html = plot_html(plot);
    const auto begin = html.find("id=\"points\">") + 12;
    EXPECT_EQ(nlohmann::json::parse(html.substr(begin, html.find("</script>", begin) - begin)), points);
    EXPECT_EQ(points.front().first, 0);
    EXPECT_EQ(points.back().first, num_steps - 1);
    EXPECT_LE(points.size(), 2010U);
    LearningRateScheduler scheduler = as_lr_scheduler(plot.schedule);
    std::size_t next = 0;
    for (std::int64_t step = 0; step < num_steps; ++step, scheduler.step()) {
      if (step == num_steps / 10) {
        EXPECT_EQ(points[next].first, step) << "a corner";
      }
      if (points[next].first != step) continue;
      EXPECT_EQ(points[next++].second, 3e-4 * scheduler.factor()) << "step " << step;
    }
    EXPECT_EQ(next, points.size());
  }
}

TEST(PlotSchedule, Has_each_step_of_a_short_run) { EXPECT_EQ(plotted_points(plot_of(2000)).size(), 2000U); }

TEST(PlotSchedule, Draws_columns_as_high_as_the_rates) {
  const std::string text = plot_text({.title = "title",
                                      .schedule = build_piecewise_schedule(LinearScheduleConfig{}, 4),
                                      .num_steps = 4,
                                      .learning_rate = 2});
  EXPECT_THAT(text, HasSubstr("title\n2 |█   \n"));
  EXPECT_THAT(text, HasSubstr("\n0 |████\n"));
  EXPECT_THAT(text, HasSubstr("  2 in step 0\n  0 in step 4  (the decay, linear)\n"));
}

TEST(PlotSchedule, Has_pictures_without_a_rate_and_with_any_text) {
  PlottedSchedule plot = plot_of(10);
  plot.learning_rate = 0;
  EXPECT_THAT(plot_svg(plot), HasSubstr("a &lt; b"));
  EXPECT_THAT(plot_html(plot), HasSubstr("<title>a &lt; b</title>"));
  EXPECT_FALSE(plot_text(plot).empty());
  plot.num_steps = 0;
  EXPECT_THROW((void)plot_svg(plot), ConfigError);
}

}  // namespace
}  // namespace d9d::plot_schedule_test
