#include "d9d/loop/step/train_pack.h"

#include <cstdint>
#include <span>

namespace d9d {
namespace {

void run_microbatches(PipelineExecutor& executor, const std::vector<PipelineStage*>& stages, StepMicrobatches& step,
                      StepGraphs* graphs, std::size_t first, std::size_t size) {
  step.executed = {.first = first, .are_last = first + size == step.pack.size()};
  if (graphs != nullptr) {
    std::vector<std::vector<bool>> received;
    for (std::size_t i = 0; i < stages.size(); ++i) received.push_back(step.gradients->received(i));
    step.executed.graph = graphs->begin(std::span(step.pack).subspan(first, size), received);
  }
  StepGraph* const graph = step.executed.graph;
  step.executed.keep_inputs = graph != nullptr || executor.runs_at_once(static_cast<std::int64_t>(size));
  executor.run(stages, static_cast<std::int64_t>(size), graph == nullptr ? nullptr : &*graph->program);
}

}  // namespace

void train_pack(PipelineExecutor& executor, const std::vector<PipelineStage*>& stages, StepMicrobatches& step,
                StepGraphs* graphs) {
  step.losses.assign(step.pack.size(), {});
  if (runs_one_by_one(executor.placement(), graphs != nullptr)) {
    for (std::size_t i = 0; i < step.pack.size(); ++i) {
      run_microbatches(executor, stages, step, graphs, i, 1);
      step.pack[i]->drop_inputs();
    }
  } else {
    run_microbatches(executor, stages, step, graphs, 0, step.pack.size());
  }
  if (graphs != nullptr) graphs->end_step();
}

}  // namespace d9d
