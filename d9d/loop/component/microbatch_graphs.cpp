#include "d9d/loop/component/microbatch_graphs.h"

#include <optional>
#include <utility>

#include <ATen/ATen.h>

#include "d9d/base/check.h"

namespace d9d {
namespace {

std::vector<at::Tensor> values_of(const TensorRefs& tensors) { return {tensors.begin(), tensors.end()}; }

std::vector<at::Tensor> copies_of(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : tensors) copies.push_back(tensor.defined() ? tensor.clone() : at::Tensor());
  return copies;
}

void copy_values(const std::vector<at::Tensor>& sources, const std::vector<at::Tensor>& targets) {
  for (std::size_t i = 0; i < sources.size(); ++i) {
    if (sources[i].defined()) targets[i].copy_(sources[i]);
  }
}

// How often each tensor has been written in place; 0 for an undefined one.
std::vector<std::int64_t> versions_of(const std::vector<at::Tensor>& tensors) {
  std::vector<std::int64_t> versions;
  for (const at::Tensor& tensor : tensors) versions.push_back(tensor.defined() ? tensor._version() : 0);
  return versions;
}

// What a replay's caller may keep of `leaf`. The graph writes a leaf again in its next replay, so the caller gets a
// copy; for an input that the graph only reads, it gets this microbatch's input. is_read_only: one entry an input.
at::Tensor after_replay(const at::Tensor& leaf, const std::vector<at::Tensor>& graph_inputs,
                        const std::vector<bool>& is_read_only, const std::vector<at::Tensor>& inputs) {
  if (!leaf.defined()) return leaf;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (is_read_only[i] && leaf.is_same(graph_inputs[i])) return inputs[i];
  }
  return leaf.clone();
}

}  // namespace

namespace detail {

ModuleMemory::ModuleMemory(const Module& module) {
  for (const auto& [name, parameter] : module.named_parameters()) parameters_.push_back(parameter);
  for (const auto& [name, buffer] : module.named_buffers()) buffers_.push_back(buffer);
}

bool ModuleMemory::has_moved() {
  std::vector<const void*> addresses;
  const auto add = [&](const at::Tensor& tensor) {
    addresses.push_back(tensor.defined() ? tensor.const_data_ptr() : nullptr);
  };
  for (const ParameterPtr& parameter : parameters_) add(parameter->local());
  for (const BufferPtr& buffer : buffers_) add(buffer->local);
  const bool has_moved = addresses != addresses_;
  addresses_ = std::move(addresses);
  return has_moved;
}

void capture(DeviceGraph& graph, const std::function<void()>& work) {
  try {
    graph.capture(work);
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    throw StateError(
        cat("[loop::cuda_graph] expected forward, loss and backward that only give work to the device, got: ",
            text.substr(0, text.find('\n')),
            " The task, the model or a hook waits for the device, reads a value of it, or copies from memory that is "
            "not pinned. Mend that, or set trainer.cuda_graph to null."));
  }
}

}  // namespace detail

MicrobatchGraphs::MicrobatchGraphs(const CudaGraphConfig& config, MakeDeviceGraph make_graph, c10::Device device,
                                   const Module& module)
    : config_(config), make_graph_(std::move(make_graph)), device_(device), memory_(module) {}

WeightedLoss MicrobatchGraphs::run(AnyMicrobatch& microbatch, bool is_last, GradientManager& gradients,
                                   const Work& work) {
  Captured* const captured = find(microbatch, gradients);
  if (is_last) ++step_;
  if (captured != nullptr) {
    gradients.begin_replay();
    if (captured->graph == nullptr) capture(*captured, microbatch, gradients, work);
    WeightedLoss loss = replay(*captured, microbatch);
    gradients.end_replay(is_last, captured->received);
    return loss;
  }
  ++counts_.eager;
  gradients.begin_microbatch(is_last);
  WeightedLoss loss = work(microbatch, /*is_captured=*/false);
  gradients.end_microbatch();
  return loss;
}

// Null: this microbatch runs eagerly. Kinds that first occurred in the same step are captured in the same step, so that
// the memory of their eager runs is freed before the first capture allocates the memory of its graph.
MicrobatchGraphs::Captured* MicrobatchGraphs::find(const AnyMicrobatch& microbatch, const GradientManager& gradients) {
  detail::GraphKeyWriter writer(device_);
  microbatch.write_key(writer);
  writer.write(gradients.received());
  const auto key = writer.key();
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

void MicrobatchGraphs::drop_graphs() {
  captured_.clear();
  counts_.graphs = 0;
}

// Removes the oldest key that has no graph yet.
void MicrobatchGraphs::forget_oldest() {
  auto oldest = captured_.end();
  for (auto entry = captured_.begin(); entry != captured_.end(); ++entry) {
    if (entry->second.graph != nullptr) continue;
    if (oldest == captured_.end() || entry->second.last_step < oldest->second.last_step) oldest = entry;
  }
  captured_.erase(oldest);
}

void MicrobatchGraphs::capture(Captured& captured, const AnyMicrobatch& microbatch, const GradientManager& gradients,
                               const Work& work) {
  std::unique_ptr<AnyMicrobatch> after = microbatch.copy();
  captured.inputs = copies_of(values_of(after->tensors()));
  auto input = captured.inputs.begin();
  for (at::Tensor& leaf : after->tensors()) leaf = *input++;
  const std::vector<std::int64_t> versions = versions_of(captured.inputs);
  auto graph = make_graph_();
  detail::capture(*graph, [&] { captured.loss = work(*after, /*is_captured=*/true); });
  const std::vector<std::int64_t> written = versions_of(captured.inputs);
  for (std::size_t i = 0; i < versions.size(); ++i) captured.is_read_only.push_back(versions[i] == written[i]);
  for (at::Tensor& leaf : after->tensors()) {
    if (leaf.defined() && leaf.requires_grad()) leaf = leaf.detach();
  }
  captured.after = std::move(after);
  captured.received = gradients.received();
  captured.graph = std::move(graph);
  ++counts_.graphs;
}

WeightedLoss MicrobatchGraphs::replay(const Captured& captured, AnyMicrobatch& microbatch) {
  const std::vector<at::Tensor> inputs = values_of(microbatch.tensors());
  copy_values(inputs, captured.inputs);
  captured.graph->replay();
  ++counts_.replays;
  const auto value = [&](const at::Tensor& leaf) {
    return after_replay(leaf, captured.inputs, captured.is_read_only, inputs);
  };
  const std::unique_ptr<AnyMicrobatch> after = captured.after->copy();
  for (at::Tensor& leaf : after->tensors()) leaf = value(leaf);
  microbatch.assign(std::move(*after));
  WeightedLoss loss{.loss = value(captured.loss.loss), .weight = value(captured.loss.weight), .losses = {}};
  for (const auto& [name, own] : captured.loss.losses) loss.losses.emplace(name, value(own));
  return loss;
}

}  // namespace d9d
