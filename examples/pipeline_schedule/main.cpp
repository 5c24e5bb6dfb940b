// Checks a pipeline schedule of one's own, simulates it, and draws it.
//
//   build/release/bin/pipeline_schedule [picture.svg]
#include <fstream>
#include <iostream>
#include <vector>

#include "d9d/pipelining/program/validate.h"
#include "d9d/pipelining/simulator/plot_svg.h"

#include "examples/pipeline_schedule/limited_schedule.h"

int main(int argc, char** argv) {
  std::vector<d9d::PlottedStep> steps;
  for (const std::int64_t limit : {4, 3, 2}) {
    const d9d::PipelineSchedule schedule = limited_schedule(limit);
    const d9d::PipelineProgram program = d9d::build_program(schedule, 4, 8);
    d9d::validate(program, {.num_inbox_slots = 2, .max_live_microbatches = limit});
    const d9d::Simulation run = d9d::simulate(program);
    std::cout << schedule.name << ": makespan " << run.makespan << ", bubble " << run.bubble_fraction() << '\n';
    steps.push_back({.title = d9d::cat(schedule.name, " microbatches a rank: ", run.makespan), .run = run});
  }
  if (argc > 1) std::ofstream(argv[1]) << d9d::plot_svg(steps);
}
