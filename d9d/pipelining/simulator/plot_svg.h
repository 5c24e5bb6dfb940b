// Draws a simulated or measured step: ranks over time, bubbles, messages, and the memory that each rank keeps.
//
// Example
//   std::ofstream("1f1b.svg") << plot_svg({{.title = "1F1B", .run = simulate(program), .costs = {}}});
//
// The colours can be told apart with any colour vision (Okabe and Ito). If a rank has several stages, later stages are
// lighter.
#pragma once

#include <string>
#include <vector>

#include "d9d/pipelining/program/pipeline_costs.h"
#include "d9d/pipelining/simulator/simulate.h"

namespace d9d {

// One step of a plot, which draws several steps one below the other with one scale of time.
struct PlottedStep {
  std::string title;
  Simulation run;
  PipelineCosts costs = {};  // for the memory curves
};

struct PlotOptions {
  std::string time_unit = "stage forwards";  // unit of the run's times
  bool messages = true;
  bool memory = true;
};

// Returns the text of an SVG file. Throws ConfigError if no step takes time.
[[nodiscard]] std::string plot_svg(const std::vector<PlottedStep>& steps, const PlotOptions& options = {});

}  // namespace d9d
