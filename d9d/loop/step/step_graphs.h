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

// The graphs of this rank for one kind of step, and the tensors that they read and write besides activations,
// parameters and gradients.
struct StepGraph {
  [[nodiscard]] bool is_captured() const { return program && program->is_recorded(); }

  std::optional<ProgramGraphs> program = {};
  std::vector<std::vector<at::Tensor>> inputs = {};  // leaves of each microbatch
  // Filled on the last stage, one entry per microbatch, in memory that a replay writes.
  std::vector<std::unique_ptr<AnyMicrobatch>> after = {};  // as compute_loss left it
  std::vector<WeightedLoss> losses = {};
  std::vector<std::vector<bool>> received =
      {};  // of each stage of the rank, GradientManager::received() after the step
};

class StepGraphs {
 public:
  // module: all stages of this rank. When the memory of a parameter or buffer has been replaced (offload.h), all graphs
  // are dropped and every kind starts over.
  StepGraphs(const CudaGraphConfig& config, MakeDeviceGraph make_graph, c10::Device device, const Module& module);

  // Called before a step, after the inputs of its microbatches are built. Returns the graph of the step's kind, with
  // these inputs copied into its memory; if it is not captured yet, the coming run captures it. Null: the step runs
  // eagerly.
  // The step must end before a later step of a kind with a graph begins.
  [[nodiscard]] StepGraph* begin(const MicrobatchPack& pack);

  // replays and eager count microbatches, graphs counts captured computations.
  [[nodiscard]] GraphCounts counts() const;

 private:
  MakeDeviceGraph make_graph_;
  c10::Device device_;
  detail::ModuleMemory memory_;
  detail::GraphKinds<StepGraph> kinds_;
  GraphCounts counts_;
};

}  // namespace d9d
