#include "d9d/lr_scheduler/plot_schedule.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iomanip>
#include <set>
#include <sstream>

#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/base/svg/svg_canvas.h"
#include "d9d/lr_scheduler/curve.h"

namespace d9d {
namespace {

constexpr std::int64_t kMostPoints = 2000;
constexpr std::int64_t kColumns = 72, kRows = 14;  // of plot_text()
constexpr double kWidth = 860, kHeight = 320;      // of the area of the curve, in pixels
constexpr double kLeft = 76, kRight = 30, kTop = 44, kBottom = 46;
constexpr std::string_view kStyle = R"(.curve { fill: none; stroke: #0072b2; stroke-width: 2; stroke-linejoin: round; }
.grid { fill: none; stroke: #ddd; stroke-width: 1; }
.corner { fill: #0072b2; }
)";

double rate_of(const PlottedSchedule& plot, std::int64_t step) {
  return plot.learning_rate * plot.schedule.factor(step);
}

std::string number(double value) {
  std::ostringstream text;
  text << std::setprecision(4) << value;
  return text.str();
}

double highest_of(const std::vector<std::pair<std::int64_t, double>>& points) {
  double highest = 0;
  for (const auto& [step, rate] : points) highest = std::max(highest, rate);
  return highest > 0 ? highest : 1;
}

struct Corner {
  std::int64_t step = 0;
  double rate = 0;
  std::string way;  // of the curve that ends here, empty at the start
};

std::vector<Corner> corners_of(const PlottedSchedule& plot) {
  const std::vector<SchedulePhase>& phases = plot.schedule.phases();
  std::vector<Corner> corners = {{phases.front().start_step, plot.learning_rate * phases.front().start_value, ""}};
  for (const SchedulePhase& phase : phases) {
    corners.push_back(
        {phase.end_step, plot.learning_rate * phase.end_value, cat(phase.name, ", ", name_of(phase.curve))});
  }
  return corners;
}

// Places points in the picture.
struct Axes {
  double steps;    // at the right end
  double highest;  // rate at the upper end

  [[nodiscard]] double x(double step) const { return kLeft + kWidth * step / steps; }
  [[nodiscard]] double y(double rate) const { return kTop + kHeight * (1 - rate / highest); }
};

Axes axes_of(const PlottedSchedule& plot, const std::vector<std::pair<std::int64_t, double>>& points) {
  const double highest = highest_of(points), step = tick_step(highest, 6);
  return {.steps = static_cast<double>(std::max<std::int64_t>(1, plot.num_steps)),
          .highest = step * std::ceil(highest / step - 1e-9)};
}

void draw_axes(SvgCanvas& canvas, const Axes& axes) {
  const double rates = tick_step(axes.highest, 6), steps = std::max(1.0, tick_step(axes.steps, 10));
  for (int i = 0; i * rates <= axes.highest * (1 + 1e-9); ++i) {
    const double y = axes.y(i * rates);
    canvas.path(cat("M", kLeft, " ", y, "h", kWidth), i == 0 ? "class=\"axis\"" : "class=\"grid\"");
    canvas.text(kLeft - 8, y + 4, number(i * rates), "text-anchor=\"end\"");
  }
  for (int i = 0; i * steps <= axes.steps; ++i) {
    const double x = axes.x(i * steps);
    canvas.path(cat("M", x, " ", kTop + kHeight, "v5"), "class=\"axis\"");
    canvas.text(x, kTop + kHeight + 19, std::to_string(static_cast<std::int64_t>(i * steps)), "text-anchor=\"middle\"");
  }
  canvas.text(kLeft + kWidth / 2, kTop + kHeight + 38, "step", "class=\"small\" text-anchor=\"middle\"");
}

}  // namespace

std::vector<std::pair<std::int64_t, double>> plotted_points(const PlottedSchedule& plot) {
  D9D_CHECK(plot.num_steps > 0, ConfigError, "[lr_scheduler::plot] expected at least one step, got ", plot.num_steps,
            ". Plot a longer run.");
  const std::int64_t last = plot.num_steps - 1;
  std::set<std::int64_t> steps = {last};
  const std::int64_t distance = (plot.num_steps + kMostPoints - 1) / kMostPoints;
  for (std::int64_t step = 0; step < last; step += distance) steps.insert(step);
  for (const SchedulePhase& phase : plot.schedule.phases()) {
    for (const std::int64_t step : {phase.start_step, phase.end_step - 1, phase.end_step}) {
      if (step >= 0 && step <= last) steps.insert(step);
    }
  }
  std::vector<std::pair<std::int64_t, double>> points;
  for (const std::int64_t step : steps) points.emplace_back(step, rate_of(plot, step));
  return points;
}

std::string plot_text(const PlottedSchedule& plot) {
  constexpr std::array<const char*, 9> kEighths = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  const double highest = highest_of(plotted_points(plot));
  const std::int64_t columns = std::min(kColumns, plot.num_steps);
  const std::string top = number(highest);
  std::string text = plot.title + "\n";
  for (std::int64_t row = kRows - 1; row >= 0; --row) {
    const std::string label = row == kRows - 1 ? top : row == 0 ? "0" : "";
    text += cat(std::string(top.size() - label.size(), ' '), label, " |");
    for (std::int64_t column = 0; column < columns; ++column) {
      const std::int64_t step = columns == 1 ? 0 : column * (plot.num_steps - 1) / (columns - 1);
      const std::int64_t eighths = std::lround(rate_of(plot, step) / highest * static_cast<double>(8 * kRows));
      text += kEighths.at(static_cast<std::size_t>(std::clamp<std::int64_t>(eighths - 8 * row, 0, 8)));
    }
    text += '\n';
  }
  const std::string indent(top.size() + 2, ' '), last = cat("step ", plot.num_steps - 1);
  const auto width = static_cast<std::size_t>(columns);
  text += cat(indent, "0", std::string(width > last.size() + 1 ? width - last.size() - 1 : 1, ' '), last, "\n");
  for (const auto& [step, rate, way] : corners_of(plot)) {
    text += cat("  ", number(rate), " in step ", step, way.empty() ? "" : cat("  (", way, ")"), "\n");
  }
  return text;
}

std::string plot_svg(const PlottedSchedule& plot) {
  const auto points = plotted_points(plot);
  const Axes axes = axes_of(plot, points);
  SvgCanvas canvas(kLeft + kWidth + kRight, kTop + kHeight + kBottom, kStyle);
  canvas.text(kLeft, 26, plot.title, "class=\"title\"");
  draw_axes(canvas, axes);
  std::string path;
  for (const auto& [step, rate] : points) {
    path += cat(path.empty() ? "M" : "L", axes.x(static_cast<double>(step)), " ", axes.y(rate));
  }
  canvas.path(path, "class=\"curve\"");
  for (const auto& [step, rate, way] : corners_of(plot)) {
    if (step > plot.num_steps) continue;
    canvas.titled_rect(axes.x(static_cast<double>(step)) - 3, axes.y(rate) - 3, 6, 6, "class=\"corner\"",
                       cat(number(rate), " in step ", step));
  }
  return canvas.take();
}

std::string plot_html(const PlottedSchedule& plot) {
  const auto points = plotted_points(plot);
  const Axes axes = axes_of(plot, points);
  std::string rows;
  for (const auto& [step, rate, way] : corners_of(plot)) {
    rows += cat("<tr><td>", step, "</td><td>", number(rate), "</td><td>", escaped_markup(way), "</td></tr>\n");
  }
  return cat(R"(<!DOCTYPE html>
<html lang="en"><meta charset="utf-8">
<title>)",
             escaped_markup(plot.title), R"(</title>
<style>
body { font: 14px sans-serif; color: #333; margin: 24px; }
svg { max-width: 100%; height: auto; }
table { border-collapse: collapse; } td, th { padding: 3px 14px 3px 0; text-align: left; }
output { display: block; height: 1.5em; }
</style>
)",
             plot_svg(plot), R"(<output>Point at the curve for its values.</output>
<table><tr><th>step</th><th>learning rate</th><th>phase that ends</th></tr>
)",
             rows, R"(</table>
<script type="application/json" id="points">)",
             nlohmann::json(points).dump(), R"(</script>
<script>
const points = JSON.parse(document.getElementById("points").textContent), picture = document.querySelector("svg");
picture.addEventListener("pointermove", event => {
  const box = picture.getBoundingClientRect(), width = picture.viewBox.baseVal.width;
  const step = ((event.clientX - box.left) / box.width * width - )",
             kLeft, ") / ", kWidth, " * ", static_cast<std::int64_t>(axes.steps), R"(;
  const near = points.reduce((a, b) => Math.abs(b[0] - step) < Math.abs(a[0] - step) ? b : a);
  document.querySelector("output").textContent = "step " + near[0] + ": learning rate " + near[1].toPrecision(6);
});
</script>
</html>
)");
}

}  // namespace d9d
