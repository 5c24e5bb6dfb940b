// Trains microbatches with CUDA graphs: the forwards and backwards of each kind of run are executed eagerly in its
// first few steps, are then captured, one graph each, and are replayed from then on.
//
//   model in several stages   a run has all microbatches of a step, which are in flight together
//   model in one stage        a run has one microbatch: its backward ends before the next forward begins, so that kinds
//                             of microbatches may come in any order
//
// Example
//   StepGraphs graphs(config, cuda_graphs(device), device, *job.module);
//   StepGraph* const graph = graphs.begin(run, {gradients.received()});    // null: this run is eager
//   executor.run(stages, run.size(), graph == nullptr ? nullptr : &*graph->program);
//   graphs.end_step();                                                      // after the last run of a step
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/core/device/device_graph.h"
#include "d9d/loop/graphs/graph_kinds.h"
#include "d9d/loop/graphs/module_memory.h"
#include "d9d/loop/step/microbatch.h"
#include "d9d/loop/step/weighted_loss.h"
#include "d9d/modules/module.h"
#include "d9d/pipelining/executor/program_graphs.h"

namespace d9d {

struct GraphCounts {
  std::int64_t graphs = 0;   // captured forwards and backwards, or parts of backwards
  std::int64_t replays = 0;  // microbatches, including the replay right after each capture
  std::int64_t eager = 0;    // microbatches that ran without graphs
};

// The graphs of this rank for one kind of run, and the tensors that they read and write besides activations,
// parameters and gradients.
struct StepGraph {
  [[nodiscard]] bool is_captured() const { return program && program->is_recorded(); }

  std::optional<ProgramGraphs> program = {};
  std::vector<std::vector<at::Tensor>> inputs = {};  // leaves of each microbatch, which the graphs read
  // Filled on the last stage, one entry per microbatch, in memory that a replay writes.
  std::vector<std::unique_ptr<AnyMicrobatch>> after = {};  // microbatches with the state that compute_loss left
  std::vector<WeightedLoss> losses = {};
  std::vector<std::vector<bool>> received = {};  // GradientManager::received() of each stage after the run
};

class StepGraphs {
 public:
  // module: all stages of this rank. When the memory of a parameter or buffer has been replaced (offload.h), a
  // reduction has given memory back, or a parameter was frozen or is trained again, all graphs are dropped and every
  // kind starts over.
  StepGraphs(const CudaGraphConfig& config, MakeDeviceGraph make_graph, c10::Device device, Module& module);

  // Called before a run, after the inputs of its microbatches are built. received: GradientManager::received() of each
  // stage of the rank, which decides whether gradients are overwritten or added to. Returns the graph of the run's
  // kind, with these inputs copied into its memory; if it is not captured yet, the coming run captures it. Null: the
  // run is eager. The type of the microbatches must have keys (Microbatch<Types>::kHasKey).
  // The run must end before a later run with a graph begins.
  [[nodiscard]] StepGraph* begin(std::span<const std::unique_ptr<AnyMicrobatch>> run,
                                 const std::vector<std::vector<bool>>& received);
  // Drops all graphs and their memory: every kind starts over. Called between steps.
  void clear() { kinds_.clear(); }
  // Called after the last run of a step. Kinds that first occurred in the same step are captured in the same step.
  void end_step() { kinds_.end_step(); }

  [[nodiscard]] GraphCounts counts() const;
  [[nodiscard]] std::int64_t num_kinds() const { return kinds_.size(); }

 private:
  MakeDeviceGraph make_graph_;
  c10::Device device_;
  detail::ModuleMemory memory_;
  detail::GraphKinds<StepGraph> kinds_;
  GraphCounts counts_;
};

}  // namespace d9d
