// A pipeline schedule: where the stages lie, and in which order each rank computes. Those of this library come from
// their configuration; a schedule of one's own is a value of this type.
//
// Example
//   const auto schedule = schedule_of(OneFOneBScheduleConfig{.num_stages_per_rank = 2, .zero_bubble = true});
//   const PipelineProgram program = build_program(schedule, /*num_ranks=*/4, /*num_microbatches=*/16);
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "d9d/pipelining/program/pipeline_program.h"
#include "d9d/pipelining/schedules/pipeline_schedule_config.h"
#include "d9d/pipelining/schedules/place_messages.h"

namespace d9d {

struct PipelineSchedule {
  std::string name;  // in messages and pictures
  std::function<StagePlacement(std::int64_t num_ranks)> placement;
  // The computations of one rank, in order: the same whichever rank asks. Throws ConfigError for a number of
  // microbatches that the schedule cannot run.
  std::function<RankProgram(const StagePlacement& stages, std::int64_t rank, std::int64_t num_microbatches)> order;
};

// With one stage in all, every schedule that trains is F0 B0 F1 B1: it keeps one microbatch of activations.
// ConfigError for auto, which stands for no schedule yet.
[[nodiscard]] PipelineSchedule schedule_of(const PipelineScheduleConfig& config);

// Where the stages lie on so many ranks. Throws ConfigError where the schedule has no placement or no order, or a
// placement on another number of ranks.
[[nodiscard]] StagePlacement placement_of(const PipelineSchedule& schedule, std::int64_t num_ranks);

// Computations only. Throws ConfigError for less than one rank or microbatch, and what order() throws.
[[nodiscard]] PipelineProgram build_compute_program(const PipelineSchedule& schedule, std::int64_t num_ranks,
                                                    std::int64_t num_microbatches);

// Computations and messages, validated: the order of a schedule of one's own may be wrong, which throws ConfigError.
[[nodiscard]] PipelineProgram build_program(const PipelineSchedule& schedule, std::int64_t num_ranks,
                                            std::int64_t num_microbatches, const MessagePlacement& placement = {});

}  // namespace d9d
