// Forward and backward of microbatches as device graphs: those of a kind that comes back are done as usual in a few
// steps, then captured, and from then on replayed.
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

// What forward and loss of a microbatch read, and what they write beside gradients.
template <class Types>
using Microbatch = std::tuple<typename Types::Input, typename Types::Shared, typename Types::State>;

struct GraphCounts {
  std::int64_t graphs = 0;   // that there are
  std::int64_t replays = 0;  // a capture is followed by one
  std::int64_t eager = 0;    // microbatches without a graph
};

namespace detail {

[[nodiscard]] std::vector<at::Tensor> copies_of(const std::vector<at::Tensor>& tensors);
void copy_values(const std::vector<at::Tensor>& sources, const std::vector<at::Tensor>& targets);
// How often each has been written in place; 0 of an undefined one.
[[nodiscard]] std::vector<std::int64_t> versions_of(const std::vector<at::Tensor>& tensors);
// What a replay's caller may keep of `leaf`. The graph writes a leaf again in its next replay, so the caller gets a
// copy; for an input that the graph only reads, it gets this microbatch's input. is_read_only: one entry an input.
[[nodiscard]] at::Tensor after_replay(const at::Tensor& leaf, const std::vector<at::Tensor>& graph_inputs,
                                      const std::vector<bool>& is_read_only, const std::vector<at::Tensor>& inputs);

// Where the parameters and buffers of a module lie. Graphs know them by address.
class ModuleMemory {
 public:
  explicit ModuleMemory(const Module& module);
  // Whether any lies elsewhere than when this was asked last. Throws c10::Error where one is asleep (offload.h).
  [[nodiscard]] bool has_moved();

 private:
  std::vector<ParameterPtr> parameters_;
  std::vector<BufferPtr> buffers_;
  std::vector<const void*> addresses_;
};
// Captures; what LibTorch throws becomes one StateError that says what to do.
void capture(DeviceGraph& graph, const std::function<void()>& work);
[[noreturn]] void refuse_types();

}  // namespace detail

template <class Types>
class MicrobatchGraphs {
 public:
  // Does forward, loss and backward of the microbatch and updates it. is_captured: the device will do the same again
  // for other values of the microbatch's tensors, without the host.
  using Work = std::function<WeightedLoss(Microbatch<Types>& microbatch, bool is_captured)>;

  // module: that the work runs. Where the memory of a parameter or buffer has been exchanged (offload.h), all graphs
  // are dropped, and kinds begin anew. Throws ConfigError where inputs, shared or state hold other than tensors and
  // plain values.
  MicrobatchGraphs(const CudaGraphConfig& config, MakeDeviceGraph make_graph, c10::Device device, const Module& module)
      : config_(config), make_graph_(std::move(make_graph)), device_(device), memory_(module) {
    if constexpr (!kCanCapture) detail::refuse_types();
  }

  // Collective: begin_microbatch() and end_microbatch() of `gradients`, whose memory is kept, and the work in between.
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
  // Kinds with a graph, and those that wait for one: at most kMaxWaiting, the last that came.
  [[nodiscard]] std::int64_t num_kinds() const { return std::ssize(captured_); }
  static constexpr std::int64_t kMaxWaiting = 64;

 private:
  static constexpr bool kCanCapture = kHasGraphKey<Microbatch<Types>> && TensorTree<Microbatch<Types>>;

  struct Captured {
    std::int64_t num_steps = 0;  // that had it
    std::int64_t last_step = -1;
    std::unique_ptr<DeviceGraph> graph;      // null: not yet
    std::vector<at::Tensor> inputs;          // that it reads: leaves of the microbatch
    std::vector<bool> is_read_only;          // inputs: not written in place
    std::optional<Microbatch<Types>> after;  // as the work left it, at the places where a replay writes
    WeightedLoss loss;                       // likewise
    std::vector<bool> received;              // GradientManager::received() after it
  };

  // Null: this microbatch runs as usual. Kinds that came together are captured in one step: what they needed to run as
  // usual is given back before the first of them takes memory for its graph.
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
    return {.loss = value(captured.loss.loss), .weight = value(captured.loss.weight)};
  }

  CudaGraphConfig config_;
  MakeDeviceGraph make_graph_;
  c10::Device device_;
  detail::ModuleMemory memory_;
  std::map<std::string, Captured> captured_;  // by key
  GraphCounts counts_;
  std::int64_t step_ = 0;  // that runs
};

}  // namespace d9d
