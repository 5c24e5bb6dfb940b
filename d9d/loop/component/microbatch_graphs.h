// Forward and backward of microbatches as device graphs: each kind of microbatch runs eagerly in its first few steps,
// is then captured, and is replayed from then on.
//
// Example
//   MicrobatchGraphs<Types> graphs(config, cuda_graphs(device), device, *model);
//   const WeightedLoss loss = graphs.run(microbatch, is_last, gradients, [&](Microbatch<Types>& microbatch, bool) {
//     ...                                       // forward, loss
//     (loss * weight).backward();
//     return WeightedLoss{loss.detach(), weight.detach()};
//   });
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "d9d/base/check.h"
#include "d9d/core/device/device_graph.h"
#include "d9d/loop/component/gradient_manager.h"
#include "d9d/loop/component/graph_key.h"
#include "d9d/loop/component/weighted_loss.h"
#include "d9d/loop/config/trainer_config.h"
#include "d9d/modules/module.h"

namespace d9d {

// What forward and loss of a microbatch read, and what they write besides gradients.
template <class Types>
using Microbatch = std::tuple<InputOf<Types>, SharedOf<Types>, StateOf<Types>, LossShares>;

struct GraphCounts {
  std::int64_t graphs = 0;   // graphs captured
  std::int64_t replays = 0;  // includes the replay right after each capture
  std::int64_t eager = 0;    // microbatches that ran without a graph
};

namespace detail {

[[nodiscard]] std::vector<at::Tensor> copies_of(const std::vector<at::Tensor>& tensors);
void copy_values(const std::vector<at::Tensor>& sources, const std::vector<at::Tensor>& targets);
// How often each tensor has been written in place; 0 for an undefined one.
[[nodiscard]] std::vector<std::int64_t> versions_of(const std::vector<at::Tensor>& tensors);
// What a replay's caller may keep of `leaf`. The graph writes a leaf again in its next replay, so the caller gets a
// copy; for an input that the graph only reads, it gets this microbatch's input. is_read_only: one entry an input.
[[nodiscard]] at::Tensor after_replay(const at::Tensor& leaf, const std::vector<at::Tensor>& graph_inputs,
                                      const std::vector<bool>& is_read_only, const std::vector<at::Tensor>& inputs);

// The addresses of a module's parameters and buffers, which graphs refer to.
class ModuleMemory {
 public:
  explicit ModuleMemory(const Module& module);
  // Whether any address has changed since the previous call. Throws c10::Error if a tensor is asleep (offload.h).
  [[nodiscard]] bool has_moved();

 private:
  std::vector<ParameterPtr> parameters_;
  std::vector<BufferPtr> buffers_;
  std::vector<const void*> addresses_;
};
// Captures `work`. Turns what LibTorch throws into a StateError that says what to do.
void capture(DeviceGraph& graph, const std::function<void()>& work);
[[noreturn]] void refuse_types();

}  // namespace detail

template <class Types>
class MicrobatchGraphs {
 public:
  // Runs forward, loss and backward of the microbatch and updates it. is_captured: the device will repeat this work for
  // other values of the microbatch's tensors, without the host.
  using Work = std::function<WeightedLoss(Microbatch<Types>& microbatch, bool is_captured)>;

  // module: the one that the work runs. When the memory of a parameter or buffer has been replaced (offload.h), all
  // graphs are dropped and every kind starts over. Throws ConfigError if inputs, shared or state hold anything but
  // tensors and plain values.
  MicrobatchGraphs(const CudaGraphConfig& config, MakeDeviceGraph make_graph, c10::Device device, const Module& module)
      : config_(config), make_graph_(std::move(make_graph)), device_(device), memory_(module) {
    if constexpr (!kCanCapture) detail::refuse_types();
  }

  // Collective. Calls begin_microbatch() and end_microbatch() of `gradients`, whose memory is kept, and runs the work
  // in between.
  WeightedLoss run(Microbatch<Types>& microbatch, bool is_last, GradientManager& gradients, const Work& work) {
    if constexpr (kCanCapture) {
      Captured* const captured = find(microbatch, gradients);
      if (is_last) ++step_;
      if (captured != nullptr) {
        gradients.begin_replay();
        if (captured->graph == nullptr) capture(*captured, microbatch, gradients, work);
        const WeightedLoss loss = replay(*captured, microbatch);
        gradients.end_replay(is_last, captured->received);
        return loss;
      }
    }
    ++counts_.eager;
    gradients.begin_microbatch(is_last);
    const WeightedLoss loss = work(microbatch, /*is_captured=*/false);
    gradients.end_microbatch();
    return loss;
  }

  [[nodiscard]] const GraphCounts& counts() const { return counts_; }
  // Number of kinds with a graph plus kinds that wait for one; of the latter the latest kMaxWaiting are kept.
  [[nodiscard]] std::int64_t num_kinds() const { return std::ssize(captured_); }
  static constexpr std::int64_t kMaxWaiting = 64;

 private:
  static constexpr bool kCanCapture = kHasGraphKey<Microbatch<Types>> && TensorTree<Microbatch<Types>>;

  struct Captured {
    std::int64_t num_steps = 0;  // steps in which this kind occurred
    std::int64_t last_step = -1;
    std::unique_ptr<DeviceGraph> graph;      // null: not yet
    std::vector<at::Tensor> inputs;          // leaves of the microbatch that the graph reads
    std::vector<bool> is_read_only;          // one entry an input: not written in place
    std::optional<Microbatch<Types>> after;  // the microbatch as the work left it, in the memory that a replay writes
    WeightedLoss loss;                       // likewise in the memory that a replay writes
    std::vector<bool> received;              // GradientManager::received() after the work
  };

  // Null: this microbatch runs eagerly. Kinds that first occurred in the same step are captured in the same step, so
  // that the memory of their eager runs is freed before the first capture allocates the memory of its graph.
  Captured* find(const Microbatch<Types>& microbatch, const GradientManager& gradients) {
    const auto key = graph_key(std::pair(microbatch, gradients.received()), device_);
    if (!key) return nullptr;
    if (memory_.has_moved()) drop_graphs();
    auto found = captured_.find(*key);
    if (found != captured_.end() && found->second.graph != nullptr) return &found->second;
    if (counts_.graphs == config_.max_graphs) {
      std::erase_if(captured_, [](const auto& entry) { return entry.second.graph == nullptr; });
      return nullptr;
    }
    if (found == captured_.end()) {
      if (num_kinds() - counts_.graphs == kMaxWaiting) forget_oldest();
      found = captured_.try_emplace(*key).first;
    }
    Captured& captured = found->second;
    if (captured.last_step != step_) ++captured.num_steps;
    captured.last_step = step_;
    return captured.num_steps > config_.num_warm_up_steps ? &captured : nullptr;
  }

  void drop_graphs() {
    captured_.clear();
    counts_.graphs = 0;
  }

  // Removes the oldest key that has no graph yet.
  void forget_oldest() {
    auto oldest = captured_.end();
    for (auto entry = captured_.begin(); entry != captured_.end(); ++entry) {
      if (entry->second.graph != nullptr) continue;
      if (oldest == captured_.end() || entry->second.last_step < oldest->second.last_step) oldest = entry;
    }
    captured_.erase(oldest);
  }

  void capture(Captured& captured, const Microbatch<Types>& microbatch, const GradientManager& gradients,
               const Work& work) {
    const FlatTree<Microbatch<Types>> flat = tree_flatten(microbatch);
    captured.inputs = detail::copies_of(flat.leaves);
    Microbatch<Types> after = tree_unflatten(flat.spec, captured.inputs);
    const std::vector<std::int64_t> versions = detail::versions_of(captured.inputs);
    auto graph = make_graph_();
    detail::capture(*graph, [&] { captured.loss = work(after, /*is_captured=*/true); });
    const std::vector<std::int64_t> written = detail::versions_of(captured.inputs);
    for (std::size_t i = 0; i < versions.size(); ++i) captured.is_read_only.push_back(versions[i] == written[i]);
    tree_for_each_leaf(after, [](at::Tensor& leaf) {
      if (leaf.defined() && leaf.requires_grad()) leaf = leaf.detach();
    });
    captured.after = std::move(after);
    captured.received = gradients.received();
    captured.graph = std::move(graph);
    ++counts_.graphs;
  }

  WeightedLoss replay(const Captured& captured, Microbatch<Types>& microbatch) {
    const std::vector<at::Tensor> inputs = tree_leaves(microbatch);
    detail::copy_values(inputs, captured.inputs);
    captured.graph->replay();
    ++counts_.replays;
    const auto value = [&](const at::Tensor& leaf) {
      return detail::after_replay(leaf, captured.inputs, captured.is_read_only, inputs);
    };
    microbatch = tree_map(value, *captured.after);
    WeightedLoss loss{.loss = value(captured.loss.loss), .weight = value(captured.loss.weight), .losses = {}};
    for (const auto& [name, own] : captured.loss.losses) loss.losses.emplace(name, value(own));
    return loss;
  }

  CudaGraphConfig config_;
  MakeDeviceGraph make_graph_;
  c10::Device device_;
  detail::ModuleMemory memory_;
  std::map<std::string, Captured> captured_;  // by key
  GraphCounts counts_;
  std::int64_t step_ = 0;  // the current step
};

}  // namespace d9d
