// Forward and backward of microbatches as device graphs: each kind of microbatch runs eagerly in its first few steps,
// is then captured, and is replayed from then on.
//
// Example
//   MicrobatchGraphs graphs(config, cuda_graphs(device), device, *model);
//   const WeightedLoss loss = graphs.run(microbatch, is_last, gradients, [&](AnyMicrobatch& microbatch, bool) {
//     ...                                       // forward, loss
//     (loss * weight).backward();
//     return WeightedLoss{loss.detach(), weight.detach()};
//   });
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "d9d/core/device/device_graph.h"
#include "d9d/loop/config/trainer_config.h"
#include "d9d/loop/graphs/graph_kinds.h"
#include "d9d/loop/step/gradient_manager.h"
#include "d9d/loop/step/microbatch.h"
#include "d9d/loop/step/weighted_loss.h"
#include "d9d/modules/module.h"

namespace d9d {

struct GraphCounts {
  std::int64_t graphs = 0;   // graphs captured
  std::int64_t replays = 0;  // includes the replay right after each capture
  std::int64_t eager = 0;    // microbatches that ran without a graph
};

namespace detail {

// The properties of a module that captured graphs depend on: the addresses of its parameters and buffers, and which
// parameters are trained.
class ModuleMemory {
 public:
  explicit ModuleMemory(const Module& module);
  // Whether any of these has changed since the previous call. Throws c10::Error if a tensor is asleep (offload.h).
  [[nodiscard]] bool has_changed();

 private:
  std::vector<ParameterPtr> parameters_;
  std::vector<BufferPtr> buffers_;
  std::vector<const void*> addresses_;
  std::vector<bool> are_trained_;  // parameters
};
// Wraps the graphs of a factory: capture() throws a StateError with a remedy in place of the error of LibTorch.
[[nodiscard]] MakeDeviceGraph with_remedies(MakeDeviceGraph make_graph);

[[nodiscard]] std::vector<at::Tensor> values_of(const TensorRefs& tensors);
[[nodiscard]] std::vector<at::Tensor> copies_of(const std::vector<at::Tensor>& tensors);
// Copies each defined source to its target, with one launch per dtype.
void copy_values(const std::vector<at::Tensor>& sources, const std::vector<at::Tensor>& targets);

}  // namespace detail

class MicrobatchGraphs {
 public:
  // Runs forward, loss and backward of the microbatch and updates it. is_captured: the device will repeat this work for
  // other values of the microbatch's tensors, without the host.
  using Work = std::function<WeightedLoss(AnyMicrobatch& microbatch, bool is_captured)>;

  // module: the one that the work runs. When the memory of a parameter or buffer has been replaced (offload.h), or a
  // parameter was frozen or is trained again, all graphs are dropped and every kind starts over.
  MicrobatchGraphs(const CudaGraphConfig& config, MakeDeviceGraph make_graph, c10::Device device, const Module& module);

  // Collective. Calls begin_microbatch() and end_microbatch() of `gradients`, which need GradientMemory::kKept, and
  // runs the work in between. The type of the microbatch must have keys (Microbatch<Types>::kHasKey).
  WeightedLoss run(AnyMicrobatch& microbatch, bool is_last, GradientManager& gradients, const Work& work);

  [[nodiscard]] const GraphCounts& counts() const { return counts_; }
  [[nodiscard]] std::int64_t num_kinds() const { return kinds_.size(); }

 private:
  struct Captured {
    [[nodiscard]] bool is_captured() const { return graph != nullptr; }
    std::unique_ptr<DeviceGraph> graph;
    std::vector<at::Tensor> inputs;        // leaves of the microbatch that the graph reads
    std::vector<bool> is_read_only;        // for each input: whether the work leaves it unwritten
    std::unique_ptr<AnyMicrobatch> after;  // the microbatch as the work left it, in the memory that a replay writes
    WeightedLoss loss;                     // likewise in the memory that a replay writes
    std::vector<bool> received;            // GradientManager::received() after the work
  };

  [[nodiscard]] Captured* find(const AnyMicrobatch& microbatch, const GradientManager& gradients);
  void capture(Captured& captured, const AnyMicrobatch& microbatch, const GradientManager& gradients, const Work& work);
  WeightedLoss replay(const Captured& captured, AnyMicrobatch& microbatch);

  MakeDeviceGraph make_graph_;
  c10::Device device_;
  detail::ModuleMemory memory_;
  detail::GraphKinds<Captured> kinds_;
  GraphCounts counts_;
};

}  // namespace d9d
