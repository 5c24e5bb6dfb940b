// simulate() for MessageChannels::kLinks.
#pragma once

#include "d9d/pipelining/simulator/simulate.h"

namespace d9d::detail {

[[nodiscard]] Simulation simulate_links(const PipelineProgram& program, const SimulationOptions& options);

}  // namespace d9d::detail
