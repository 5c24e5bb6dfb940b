// Steps of a pipeline as device graphs: the computations of each kind of step run eagerly in its first few steps, are
// then captured, one graph each, and are replayed from then on.
//
// Example
//   StepGraphs graphs(config, cuda_graphs(device), device, *job.module);
//   StepGraph* const graph = graphs.begin(step.pack);                // null: this step runs eagerly
//   executor.run(stages, num_microbatches, graph == nullptr ? nullptr : &*graph->program);
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/core/device/device_graph.h"
#include "d9d/loop/graphs/graph_kinds.h"
#include "d9d/loop/step/microbatch.h"
#include "d9d/loop/step/microbatch_graphs.h"
#include "d9d/loop/step/weighted_loss.h"
#include "d9d/pipelining/executor/program_graphs.h"

namespace d9d {

// A kind of step: the graphs of this rank, and what they read and write besides activations, parameters and gradients.
struct StepGraph {
  [[nodiscard]] bool is_captured() const { return program && program->is_recorded(); }

  std::optional<ProgramGraphs> program = {};
  std::vector<std::vector<at::Tensor>> inputs = {};  // leaves of each microbatch
  // Of the last stage, for each microbatch, in memory that a replay writes.
  std::vector<std::unique_ptr<AnyMicrobatch>> after = {};  // as compute_loss left it
  std::vector<WeightedLoss> losses = {};
  std::vector<std::vector<bool>> received =
      {};  // of each stage of the rank, GradientManager::received() after the step
};

class StepGraphs {
 public:
  // module: of all stages of the rank. When the memory of a parameter or buffer has been replaced (offload.h), all
  // graphs are dropped and every kind starts over.
  StepGraphs(const CudaGraphConfig& config, MakeDeviceGraph make_graph, c10::Device device, const Module& module);

  // Before a step whose microbatches have been built: the graph of its kind, which has the microbatches' values and, if
  // it is not captured yet, will be by the coming run. Null: the step runs eagerly.
  // A later step whose kind has a graph must not begin before the step has ended.
  [[nodiscard]] StepGraph* begin(const MicrobatchPack& pack);

  // In microbatches, but graphs: those of computations.
  [[nodiscard]] GraphCounts counts() const;

 private:
  MakeDeviceGraph make_graph_;
  c10::Device device_;
  detail::ModuleMemory memory_;
  detail::GraphKinds<StepGraph> kinds_;
  GraphCounts counts_;
};

}  // namespace d9d
