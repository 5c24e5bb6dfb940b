// Whether the ranks of a pipeline are about to run the same step.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "d9d/core/dist_context/dist_context.h"
#include "d9d/pipelining/executor/pipeline_stage.h"
#include "d9d/pipelining/program/stage_placement.h"

namespace d9d {

// Collective over the ranks of a pipeline. StateError on all of them, with the same text, if they have different
// numbers of microbatches, or if a stage announces another transfer than the next one expects. Waits for the device.
void compare_transfers(const DistContext& context, const StagePlacement& placement,
                       const std::map<StageIndex, PipelineStage*>& stages, std::int64_t num_microbatches);

// Collective over the ranks of a pipeline. StateError on all of them, with the same text, if the schedule of that name
// has given them different programs, whose messages would be taken for others. Waits for the device.
void compare_programs(const DistContext& context, const std::string& schedule, const std::string& program);

}  // namespace d9d
