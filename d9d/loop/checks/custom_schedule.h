// Checks a custom pipeline schedule (TrainerParts::pipeline_schedule), and adapts it to training.
//
// Example
//   const PipelineSchedule schedule = as_trained(own, /*num_ranks=*/2);
//   check_equal_order(ranks, schedule, 2, /*num_microbatches=*/8);           // before a message is sent
#pragma once

#include <cstdint>
#include <optional>

#include "d9d/core/mesh/device_mesh.h"
#include "d9d/pipelining/schedules/pipeline_schedule.h"

namespace d9d {

// Throws ConfigError if the program has a custom schedule and the configuration sets one too.
void refuse_two_schedules(const std::optional<PipelineSchedule>& own, const PipelineScheduleConfig& configured);

// Returns `given` with a fixed placement of stages over `num_ranks` pipeline ranks. order() of the result throws
// ConfigError for a program without a backward. For a model of one stage, order() only checks the program of `given`
// and returns another one, in which each microbatch's backward runs right after its forward.
[[nodiscard]] PipelineSchedule as_trained(const PipelineSchedule& given, std::int64_t num_ranks);

// Collective over `ranks`. Builds the schedule's program and compares it between ranks. Throws ConfigError on all ranks
// if two ranks with the same number of microbatches have different programs. Throws StateError if a rank compares
// transfers in this collective instead, because it has another number of microbatches, whose program it checked
// earlier.
void check_equal_order(const DeviceMesh& ranks, const PipelineSchedule& schedule, std::int64_t num_pipeline_ranks,
                       std::int64_t num_microbatches);

}  // namespace d9d
