#include "d9d/loop/step/microbatch_graphs.h"

#include <map>
#include <optional>
#include <string>
#include <utility>

#include <ATen/ATen.h>

#include "d9d/base/check.h"

namespace d9d {
namespace {

// How often each tensor has been written in place; 0 for an undefined one.
std::vector<std::int64_t> versions_of(const std::vector<at::Tensor>& tensors) {
  std::vector<std::int64_t> versions;
  for (const at::Tensor& tensor : tensors) versions.push_back(tensor.defined() ? tensor._version() : 0);
  return versions;
}

// Returns the tensor that the caller of a replay gets for `leaf`: a copy, since the next replay writes `leaf` again,
// or, for an input that the graph only reads, this microbatch's own input. is_read_only: one entry per input.
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

bool ModuleMemory::has_changed() {
  std::vector<const void*> addresses;
  std::vector<bool> are_trained;
  const auto add = [&](const at::Tensor& tensor) {
    addresses.push_back(tensor.defined() ? tensor.const_data_ptr() : nullptr);
  };
  for (const ParameterPtr& parameter : parameters_) {
    add(parameter->local());
    are_trained.push_back(parameter->requires_grad());
  }
  for (const BufferPtr& buffer : buffers_) add(buffer->local);
  const bool has_changed = addresses != addresses_ || are_trained != are_trained_;
  addresses_ = std::move(addresses);
  are_trained_ = std::move(are_trained);
  return has_changed;
}

std::vector<at::Tensor> values_of(const TensorRefs& tensors) { return {tensors.begin(), tensors.end()}; }

std::vector<at::Tensor> copies_of(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : tensors) copies.push_back(tensor.defined() ? tensor.clone() : at::Tensor());
  return copies;
}

void copy_values(const std::vector<at::Tensor>& sources, const std::vector<at::Tensor>& targets) {
  std::map<c10::ScalarType, std::pair<std::vector<at::Tensor>, std::vector<at::Tensor>>> by_dtype;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    if (!sources[i].defined()) continue;
    auto& [own, targets_of_dtype] = by_dtype[sources[i].scalar_type()];
    own.push_back(sources[i]);
    targets_of_dtype.push_back(targets[i]);
  }
  for (const auto& [dtype, pairs] : by_dtype) at::_foreach_copy_(pairs.second, pairs.first);
}

namespace {

class GraphWithRemedies final : public DeviceGraph {
 public:
  explicit GraphWithRemedies(std::unique_ptr<DeviceGraph> graph) : graph_(std::move(graph)) {}

  void capture(const std::function<void()>& work) override {
    try {
      graph_->capture(work);
    } catch (const c10::Error& error) {
      const std::string text = error.what_without_backtrace();
      throw StateError(
          cat("[loop::cuda_graph] expected forward, loss and backward that only give work to the device, got: ",
              text.substr(0, text.find('\n')),
              " The task, the model or a hook waits for the device, reads a value of it, or copies from memory that is "
              "not pinned. Fix that, or set trainer.cuda_graph to null."));
    }
  }
  void replay() override { graph_->replay(); }

 private:
  std::unique_ptr<DeviceGraph> graph_;
};

}  // namespace

MakeDeviceGraph with_remedies(MakeDeviceGraph make_graph) {
  return [make_graph = std::move(make_graph)] { return std::make_unique<GraphWithRemedies>(make_graph()); };
}

}  // namespace detail

MicrobatchGraphs::MicrobatchGraphs(const CudaGraphConfig& config, MakeDeviceGraph make_graph, c10::Device device,
                                   const Module& module)
    : make_graph_(detail::with_remedies(std::move(make_graph))), device_(device), memory_(module), kinds_(config) {}

WeightedLoss MicrobatchGraphs::run(AnyMicrobatch& microbatch, bool is_last, GradientManager& gradients,
                                   const Work& work) {
  Captured* const captured = find(microbatch, gradients);
  if (is_last) kinds_.end_step();
  if (captured != nullptr) {
    // The reductions of the last microbatch cannot be part of a captured graph: they run after its replay.
    gradients.begin_microbatch(/*is_last=*/false);
    if (!captured->is_captured()) capture(*captured, microbatch, gradients, work);
    WeightedLoss loss = replay(*captured, microbatch);
    gradients.set_received(0, captured->received);
    gradients.begin_microbatch(is_last);
    gradients.end_microbatch();
    return loss;
  }
  ++counts_.eager;
  gradients.begin_microbatch(is_last);
  WeightedLoss loss = work(microbatch, /*is_captured=*/false);
  gradients.end_microbatch();
  return loss;
}

MicrobatchGraphs::Captured* MicrobatchGraphs::find(const AnyMicrobatch& microbatch, const GradientManager& gradients) {
  detail::GraphKeyWriter writer(device_);
  microbatch.write_key(writer);
  writer.write(gradients.received());
  const auto key = writer.key();
  if (!key) return nullptr;
  if (memory_.has_changed()) {
    kinds_.clear();
    counts_.graphs = 0;
  }
  return kinds_.find(*key);
}

void MicrobatchGraphs::capture(Captured& captured, const AnyMicrobatch& microbatch, const GradientManager& gradients,
                               const Work& work) {
  std::unique_ptr<AnyMicrobatch> after = microbatch.copy();
  captured.inputs = detail::copies_of(detail::values_of(after->tensors()));
  auto input = captured.inputs.begin();
  for (at::Tensor& leaf : after->tensors()) leaf = *input++;
  const std::vector<std::int64_t> versions = versions_of(captured.inputs);
  auto graph = make_graph_();
  graph->capture([&] { captured.loss = work(*after, /*is_captured=*/true); });
  const std::vector<std::int64_t> written = versions_of(captured.inputs);
  for (std::size_t i = 0; i < versions.size(); ++i) captured.is_read_only.push_back(versions[i] == written[i]);
  after->detach_tensors();
  captured.after = std::move(after);
  captured.received = gradients.received();
  captured.graph = std::move(graph);
  ++counts_.graphs;
}

WeightedLoss MicrobatchGraphs::replay(const Captured& captured, AnyMicrobatch& microbatch) {
  const std::vector<at::Tensor> inputs = detail::values_of(microbatch.tensors());
  detail::copy_values(inputs, captured.inputs);
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
