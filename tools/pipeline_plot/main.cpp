// Shows what a pipeline schedule does: as text, as a picture, as a trace.
//
//   d9d_pipeline_plot 1f1b num_stages_per_rank=2 zero_bubble=true --ranks 4 --microbatches 8 --svg 1f1b.svg
#include <fstream>
#include <iomanip>
#include <iostream>
#include <sstream>

#include "d9d/base/check.h"
#include "d9d/base/io/atomic_file.h"
#include "d9d/pipelining/program/live_microbatches.h"
#include "d9d/pipelining/program/validate.h"
#include "d9d/pipelining/schedules/pipeline_schedule.h"
#include "d9d/pipelining/simulator/chrome_trace.h"
#include "d9d/pipelining/simulator/memory.h"
#include "d9d/pipelining/simulator/plot_svg.h"

#include "tools/pipeline_plot/arguments.h"

namespace d9d::plot {
namespace {

PipelineProgram read_program(const std::filesystem::path& path, const MessagePlacement& placement) {
  std::ifstream file(path);
  D9D_CHECK(file, IoError, "[pipeline_plot] cannot read ", path, ". Check the path.");
  std::ostringstream text;
  text << file.rdbuf();
  const PipelineProgram program = parse_program(text.str());
  if (program.has_messages() || program.stages.num_ranks() == 1) {
    validate(program, {.num_inbox_slots = placement.num_inbox_slots});
    return program;
  }
  validate_computations(program);
  return insert_messages(program, placement);
}

double microseconds_per(const std::string& unit) {
  if (unit == "s") return 1e6;
  return unit == "us" ? 1 : 1e3;
}

void print_summary(const std::string& name, const PipelineProgram& program, const Simulation& run,
                   const PipelineCosts& costs) {
  const auto live = peak_live_microbatches(program);
  std::cout << name << ": makespan " << run.makespan << ", bubble " << run.bubble_fraction() << '\n';
  for (std::int64_t rank = 0; rank < run.num_ranks; ++rank) {
    std::cout << "  rank " << rank << ": idle " << run.bubble_fraction(rank) << ", live microbatches at most "
              << live[static_cast<std::size_t>(rank)] << ", keeps at most " << peak_bytes(run, costs, rank) << '\n';
  }
}

void run(const Arguments& arguments) {
  if (arguments.wants_help) {
    std::cout << kUsage;
    return;
  }
  const MessagePlacement placement{.num_inbox_slots = arguments.num_slots, .costs = arguments.costs};
  const auto schedule = arguments.schedule ? std::optional(schedule_of(*arguments.schedule)) : std::nullopt;
  const PipelineProgram program =
      schedule ? build_program(*schedule, arguments.num_ranks, arguments.num_microbatches, placement)
               : read_program(*arguments.program, placement);
  const std::string name = cat(schedule ? schedule->name : arguments.program->string(),
                               ", P = ", program.stages.num_ranks(), ", M = ", program.num_microbatches);
  if (arguments.wants_compute_only) std::cout << to_text(compute_only(program));
  if (arguments.wants_text) std::cout << to_text(program);
  const Simulation simulation = simulate(program, {.costs = arguments.costs, .num_inbox_slots = arguments.num_slots});
  if (arguments.svg) {
    PlotOptions options;
    if (!arguments.unit.empty()) options.time_unit = arguments.unit;
    std::ostringstream title;
    title << name << ": " << simulation.makespan << ' ' << options.time_unit << ", bubble " << std::fixed
          << std::setprecision(1) << 100 * simulation.bubble_fraction() << " %";
    write_file_atomically(*arguments.svg,
                          plot_svg({{.title = title.str(), .run = simulation, .costs = arguments.costs}}, options));
  }
  if (arguments.trace) {
    write_file_atomically(*arguments.trace,
                          chrome_trace(simulation, arguments.costs, microseconds_per(arguments.unit)));
  }
  if (!arguments.svg && !arguments.trace && !arguments.wants_text && !arguments.wants_compute_only) {
    print_summary(name, program, simulation, arguments.costs);
  }
}

}  // namespace
}  // namespace d9d::plot

int main(int argc, char** argv) {
  try {
    d9d::plot::run(d9d::plot::parse_arguments({argv + 1, argv + argc}));
  } catch (const d9d::UsageError& error) {
    std::cerr << error.what() << '\n';
    return 2;
  } catch (const d9d::Error& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return 0;
}
