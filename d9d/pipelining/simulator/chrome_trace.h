// Formats a simulated or measured step for chrome://tracing and https://ui.perfetto.dev: each rank is a thread,
// messages are arrows, and the bytes that a rank keeps are a counter.
//
// Example
//   std::ofstream("step.json") << chrome_trace(simulate(program), {}, /*microseconds_per_unit=*/1000);
#pragma once

#include <string>

#include "d9d/pipelining/program/pipeline_costs.h"
#include "d9d/pipelining/simulator/simulate.h"

namespace d9d {

[[nodiscard]] std::string chrome_trace(const Simulation& run, const PipelineCosts& costs, double microseconds_per_unit);

}  // namespace d9d
