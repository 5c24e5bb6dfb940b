// Records each computation of a rank's program as a device graph in the first run, and replays the graphs in all runs.
//
// Example
//   ProgramGraphs graphs(cuda_graphs(device));
//   executor.run(stages, num_microbatches, &graphs);      // records each computation, and replays it
//   for (...) executor.run(stages, num_microbatches, &graphs);      // replays
//
// Graphs of one factory share memory and are replayed in the order in which they were recorded. So memory that was free
// when a computation was recorded is free when it is replayed, and activations need no more memory than without graphs.
// The inputs of a computation are copied to the addresses that its graph reads. Sends, receives, and the sums of losses
// and metrics are not recorded.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/core/device/device_graph.h"
#include "d9d/pipelining/program/action.h"

namespace d9d {

class ProgramGraphs {
 public:
  // All graphs of the factory must belong to programs that run one after the other.
  explicit ProgramGraphs(MakeDeviceGraph make_graph) : make_graph_(std::move(make_graph)) {}

  using Leaves = std::vector<at::Tensor>;
  using Work = std::function<Leaves(Leaves inputs)>;

  // In the first run of the program, records work(inputs). In every run, replays the graph with the values of `inputs`,
  // which must have the shapes and dtypes of the first run. Returns the outputs of `work`, in memory that the next run
  // overwrites.
  [[nodiscard]] Leaves run(const ComputeAction& action, Leaves inputs, const Work& work);

  // Call it after the first run, which records all computations.
  void end_recording() { is_recorded_ = true; }
  [[nodiscard]] bool is_recorded() const { return is_recorded_; }
  [[nodiscard]] std::int64_t num_graphs() const { return std::ssize(computations_); }

 private:
  struct Computation {
    Leaves inputs;
    Leaves outputs;
    std::unique_ptr<DeviceGraph> graph;
  };

  MakeDeviceGraph make_graph_;
  std::map<ComputeAction, Computation> computations_;
  bool is_recorded_ = false;
};

}  // namespace d9d
