// The computations of a rank's program as device graphs, one each: recorded in one run, replayed in all later ones.
//
// Example
//   ProgramGraphs graphs(cuda_graphs(device));
//   executor.run(stages, num_microbatches, &graphs);      // records each computation, and replays it
//   for (...) executor.run(stages, num_microbatches, &graphs);      // replays
//
// Graphs of one factory share memory, and every replay comes in the order of the records. So memory that was free when
// a computation was recorded is free when it is replayed: activations take no more than without graphs. What arrives is
// copied to where the record read it. Transfers themselves, losses and metrics are not recorded.
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
  // All graphs of the factory together must be those of programs that run one after the other.
  explicit ProgramGraphs(MakeDeviceGraph make_graph) : make_graph_(std::move(make_graph)) {}

  using Leaves = std::vector<at::Tensor>;
  using Work = std::function<Leaves(Leaves inputs)>;

  // In the first run of the program records work(inputs). Replays the record for the values of `inputs`, of the shapes
  // and dtypes of the first run. Returns what the work returned, in memory that the next run writes again.
  [[nodiscard]] Leaves run(const ComputeAction& action, Leaves inputs, const Work& work);

  // After the first run, all of whose computations were recorded.
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
