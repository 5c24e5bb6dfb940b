// A pipeline schedule of the program's own, TrainerParts::pipeline_schedule, as a job trains with it.
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

// Throws ConfigError for a schedule of the program's own beside one of the configuration.
void refuse_two_schedules(const std::optional<PipelineSchedule>& own, const PipelineScheduleConfig& configured);

// Stages lie where `given` places them now. An order without a backward throws ConfigError. With one stage in all it is
// checked, and each microbatch's backward runs right after its forward, as with every schedule that trains: gradients
// of one stage are reduced in the last forward's backward.
[[nodiscard]] PipelineSchedule as_trained(const PipelineSchedule& given, std::int64_t num_ranks);

// Collective over `ranks`. Throws ConfigError on all of them unless those with as many microbatches have the same
// program.
void check_equal_order(const DeviceMesh& ranks, const PipelineSchedule& schedule, std::int64_t num_pipeline_ranks,
                       std::int64_t num_microbatches);

}  // namespace d9d
