// Runs forward and backward of all microbatches of a step, eagerly or by graphs.
//
// Example
//   StepMicrobatches step{.pack = *binding.next_pack(), .gradients = &gradients};   // with inputs
//   train_pack(executor, {&stage}, step, /*graphs=*/nullptr);
#pragma once

#include <vector>

#include "d9d/loop/step/step_graphs.h"
#include "d9d/loop/step/training_stage.h"
#include "d9d/pipelining/executor/pipeline_executor.h"

namespace d9d {

// Whether the executor runs each microbatch by itself, with the graphs of its own kind: if there are graphs and the
// model is one stage.
[[nodiscard]] inline bool runs_one_by_one(const StagePlacement& placement, bool has_graphs) {
  return has_graphs && placement.num_stages() == 1;
}

// Collective over the ranks of a pipeline. stages: the executor's stages on this rank, which use `step`. graphs: null
// if everything runs eagerly.
void train_pack(PipelineExecutor& executor, const std::vector<PipelineStage*>& stages, StepMicrobatches& step,
                StepGraphs* graphs);

}  // namespace d9d
