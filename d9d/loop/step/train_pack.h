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

// Whether microbatches run one by one, each by the graphs of its own kind: with graphs, those of a model in one stage.
[[nodiscard]] inline bool runs_one_by_one(const StagePlacement& placement, bool has_graphs) {
  return has_graphs && placement.num_stages() == 1;
}

// Collective over the ranks of a pipeline. stages: those of the executor, which use `step`. graphs: null if everything
// is eager.
void train_pack(PipelineExecutor& executor, const std::vector<PipelineStage*>& stages, StepMicrobatches& step,
                StepGraphs* graphs);

}  // namespace d9d
