// A pipeline schedule of one's own: 1F1B with split backward that keeps at most `limit` microbatches on any rank.
//
//   build/release/bin/pipeline_schedule [picture.svg]
#include <algorithm>
#include <fstream>
#include <iostream>
#include <vector>

#include "d9d/base/check.h"
#include "d9d/pipelining/program/validate.h"
#include "d9d/pipelining/schedules/pipeline_schedule.h"
#include "d9d/pipelining/simulator/plot_svg.h"

namespace {

// In which order one rank computes its only stage. Weight gradients wait until the rank has nothing better to do.
d9d::RankProgram limited_order(std::int64_t rank, std::int64_t num_ranks, std::int64_t num_microbatches,
                               std::int64_t limit) {
  const std::int64_t num_ahead = std::min({limit, num_ranks - rank, num_microbatches});
  const d9d::StageIndex stage{rank};
  d9d::RankProgram program;
  std::int64_t num_weights = 0;
  for (std::int64_t m = 0; m < num_ahead; ++m) program.emplace_back(d9d::ForwardAction{stage, {m}});
  for (std::int64_t m = 0; m < num_microbatches; ++m) {
    program.emplace_back(d9d::BackwardInputAction{stage, {m}});
    if (m + num_ahead >= num_microbatches) continue;
    while (m + num_ahead + 1 - num_weights > limit) {
      program.emplace_back(d9d::BackwardWeightAction{stage, {num_weights++}});
    }
    program.emplace_back(d9d::ForwardAction{stage, {m + num_ahead}});
  }
  while (num_weights < num_microbatches) program.emplace_back(d9d::BackwardWeightAction{stage, {num_weights++}});
  return program;
}

d9d::PipelineSchedule limited_schedule(std::int64_t limit) {
  return {.name = d9d::cat("limited to ", limit),
          .placement = [](std::int64_t num_ranks) { return d9d::StagePlacement::loop(num_ranks, 1); },
          .order =
              [limit](const d9d::StagePlacement& stages, std::int64_t rank, std::int64_t num_microbatches) {
                return limited_order(rank, stages.num_ranks(), num_microbatches, limit);
              }};
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<d9d::PlottedStep> steps;
  for (const std::int64_t limit : {4, 3, 2}) {
    const d9d::PipelineSchedule schedule = limited_schedule(limit);
    const d9d::PipelineProgram program = d9d::build_program(schedule, 4, 8);
    d9d::validate(program, {.num_inbox_slots = 2, .max_live_microbatches = limit});
    const d9d::Simulation run = d9d::simulate(program);
    std::cout << schedule.name << ": makespan " << run.makespan << ", bubble " << run.idle_share() << '\n';
    steps.push_back({.title = d9d::cat(schedule.name, " microbatches a rank: ", run.makespan), .run = run});
  }
  if (argc > 1) std::ofstream(argv[1]) << d9d::plot_svg(steps);
}
