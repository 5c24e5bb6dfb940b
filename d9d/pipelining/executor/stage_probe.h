// Runs one microbatch on one stage, without a schedule and neighbours: its forward, then its backward, whole or as I
// and W. Measurements of time and memory use it.
//
// Example
//   StageProbe probe(stage, {0}, /*is_last_stage=*/false);
//   probe.forward(arrived, /*backward_follows=*/true);
//   probe.backward(gradients);                                           // of the outputs
//   probe.forward(arrived, /*backward_follows=*/true);
//   probe.backward_input(gradients, deferred);                           // DeferredGradients deferred(stage.weights())
//   probe.backward_weight();
#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include "d9d/core/autograd/deferred_gradients.h"
#include "d9d/pipelining/executor/pipeline_stage.h"
#include "d9d/pipelining/executor/stage_graph.h"

namespace d9d {

class StageProbe {
 public:
  using Leaves = std::vector<at::Tensor>;

  // `stage` is borrowed. is_last_stage: its forward returns a loss.
  StageProbe(PipelineStage& stage, MicrobatchIndex microbatch, bool is_last_stage)
      : stage_(stage), microbatch_(microbatch), is_last_stage_(is_last_stage) {}

  // All functions are collective if the stage's forward or backward is. arrived: the inputs, empty on the first stage.
  // Until the backward, the probe keeps the inputs and the autograd graph, but not the outputs.
  void forward(Leaves arrived, bool backward_follows);
  // gradients: of the outputs that have any; ignored on the last stage. is_last: no backward of the stage follows in
  // the step. on_current_stream: gradients of leaves are accumulated on the current stream, as
  // StageGraph::accumulate_on_current_stream() says.
  void backward(Leaves gradients, bool is_last = false, bool on_current_stream = false);
  // Runs I; keeps only the weight gradients that `deferred` defers, for backward_weight().
  void backward_input(Leaves gradients, DeferredGradients& deferred);
  void backward_weight(bool is_last = false);

 private:
  void run(BackwardPart part, Leaves gradients, bool is_last, bool on_current_stream, DeferredGradients* deferred);

  PipelineStage& stage_;
  MicrobatchIndex microbatch_;
  bool is_last_stage_;
  Leaves arrived_;
  std::optional<StageGraph> graph_;
  at::TensorOptions of_loss_;
  WeightGradients of_weights_;
};

}  // namespace d9d
