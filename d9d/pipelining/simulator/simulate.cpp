#include "d9d/pipelining/simulator/simulate.h"

#include <algorithm>

#include "d9d/base/check.h"
#include "d9d/pipelining/schedules/insert_messages.h"
#include "d9d/pipelining/simulator/simulate_links.h"
#include "d9d/pipelining/simulator/simulate_one_channel.h"

namespace d9d {
namespace {

// Returns the time in which at least one computation of `rank` runs. The spans are in order of the program; those of
// composed computations may overlap.
double busy_time(const Simulation& run, std::int64_t rank) {
  double busy = 0;
  double covered = 0;
  for (const auto& span : run.computations) {
    if (span.rank != rank) continue;
    busy += std::max(0.0, span.end - std::max(span.start, covered));
    covered = std::max(covered, span.end);
  }
  return busy;
}

}  // namespace

double Simulation::bubble_fraction(std::int64_t rank) const {
  return makespan > 0 ? 1 - busy_time(*this, rank) / makespan : 0;
}

double Simulation::bubble_fraction() const {
  double sum = 0;
  for (std::int64_t rank = 0; rank < num_ranks; ++rank) sum += bubble_fraction(rank);
  return num_ranks > 0 ? sum / static_cast<double>(num_ranks) : 0;
}

Simulation simulate(const PipelineProgram& program, const SimulationOptions& options) {
  check_costs(options.costs, program.stages.num_stages());
  D9D_CHECK(!options.num_inbox_slots || *options.num_inbox_slots >= 1, ConfigError,
            "[pipelining::simulate] expected at least one receive buffer for each link, got ",
            options.num_inbox_slots.value_or(1), ". Change num_inbox_slots.");
  const bool has_messages = program.has_messages();
  D9D_CHECK(has_messages || options.channels == MessageChannels::kLinks, ConfigError,
            "[pipelining::simulate] expected a program with messages for one channel a rank. Place them first.");
  const PipelineProgram placed =
      has_messages ? program
                   : insert_messages(program, {.num_inbox_slots = options.num_inbox_slots, .costs = options.costs});
  Simulation run = options.channels == MessageChannels::kLinks ? detail::simulate_links(placed, options)
                                                               : detail::simulate_one_channel(placed, options);
  run.num_ranks = program.stages.num_ranks();
  for (const auto& span : run.computations) run.makespan = std::max(run.makespan, span.end);
  return run;
}

}  // namespace d9d
