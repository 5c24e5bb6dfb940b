// A pipeline schedule: the placement of the stages on ranks, and the order in which each rank computes. The schedules
// of this library are built from their configuration; a custom schedule is a value of this type.
//
// Example
//   const auto schedule = schedule_of(OneFOneBScheduleConfig{.num_stages_per_rank = 2, .zero_bubble = true});
//   const PipelineProgram program = build_program(schedule, /*num_ranks=*/4, /*num_microbatches=*/16);
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "d9d/pipelining/program/pipeline_program.h"
#include "d9d/pipelining/schedules/insert_messages.h"
#include "d9d/pipelining/schedules/pipeline_schedule_config.h"

namespace d9d {

struct PipelineSchedule {
  std::string name;  // for errors and plots
  std::function<StagePlacement(std::int64_t num_ranks)> placement;
  // Returns the computations of one rank, in order. Must not depend on the rank that calls it. Throws ConfigError for a
  // number of microbatches that the schedule cannot run.
  std::function<RankProgram(const StagePlacement& stages, std::int64_t rank, std::int64_t num_microbatches)> order;
};

// Returns the schedule that `config` names. In a pipeline with a single stage, every schedule that trains runs F0 B0 F1
// B1 and so keeps the activations of one microbatch. Throws ConfigError for auto, which does not name a schedule yet.
[[nodiscard]] PipelineSchedule schedule_of(const PipelineScheduleConfig& config);

// Returns the placement of the stages on num_ranks ranks. Throws ConfigError if the schedule has no placement or no
// order, or places stages on another number of ranks.
[[nodiscard]] StagePlacement placement_of(const PipelineSchedule& schedule, std::int64_t num_ranks);

// Returns a schedule without backwards for stages that are placed already, with forward_order() (compute_order.h). It
// takes any number of microbatches.
[[nodiscard]] PipelineSchedule forwards_on(const StagePlacement& placement);

// Returns a program of computations only. Throws ConfigError for fewer than one rank or microbatch, and what order()
// throws.
[[nodiscard]] PipelineProgram build_compute_program(const PipelineSchedule& schedule, std::int64_t num_ranks,
                                                    std::int64_t num_microbatches);

// Returns a program of computations and messages. Validates it, since the order of a custom schedule may be wrong, and
// throws ConfigError if it is.
[[nodiscard]] PipelineProgram build_program(const PipelineSchedule& schedule, std::int64_t num_ranks,
                                            std::int64_t num_microbatches, const MessagePlacement& placement = {});

}  // namespace d9d
