// Draws the learning rate of each step of a run: for a terminal, as a picture, as a page.
//
// Example
//   const PlottedSchedule plot{.title = "cosine", .schedule = build_piecewise_schedule(config, 1000),
//                              .num_steps = 1000, .learning_rate = 3e-4};
//   std::cout << plot_text(plot);
//   write_file_atomically("lr.html", plot_html(plot));   // needs nothing but a browser
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "d9d/lr_scheduler/piecewise_schedule.h"

namespace d9d {

struct PlottedSchedule {
  std::string title = {};
  PiecewiseSchedule schedule;
  std::int64_t num_steps = 0;  // at least 1
  double learning_rate = 1;    // of the optimiser, which the schedule multiplies
};

// The points that the pictures connect: step, counted from 0, and learning rate. All corners of the schedule are among
// them, and all steps of a run of up to 2,000.
[[nodiscard]] std::vector<std::pair<std::int64_t, double>> plotted_points(const PlottedSchedule& plot);

// 72 columns of block elements, and the corners of the curve. UTF-8.
[[nodiscard]] std::string plot_text(const PlottedSchedule& plot);
// The text of an SVG file.
[[nodiscard]] std::string plot_svg(const PlottedSchedule& plot);
// The text of an HTML file: the picture, the corners as a table, and the value under the pointer. The points are in its
// element `points`, as JSON.
[[nodiscard]] std::string plot_html(const PlottedSchedule& plot);

}  // namespace d9d
