// Checks, before a message is sent, that the ranks of a pipeline have the same number of microbatches, expect the same
// tensors on both sides of each boundary, and run the same program.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "d9d/core/dist_context/dist_context.h"
#include "d9d/pipelining/executor/pipeline_stage.h"
#include "d9d/pipelining/program/stage_placement.h"

namespace d9d {

// Collective over the ranks of a pipeline. Throws StateError on all of them, with the same text, if their numbers of
// microbatches differ, or if a stage announces another transfer than the next stage expects. The host waits for the
// device.
void compare_transfers(const DistContext& context, const StagePlacement& placement,
                       const std::map<StageIndex, PipelineStage*>& stages, std::int64_t num_microbatches);

// Collective over the ranks of a pipeline. Throws StateError on all ranks, with the same text, if the ranks have built
// different programs: a receiver would then take a message for another transfer than the sender sent. program: the text
// of the program that this rank has built. schedule: the name of its schedule, for the error. The host waits for the
// device.
void compare_programs(const DistContext& context, const std::string& schedule, const std::string& program);

}  // namespace d9d
