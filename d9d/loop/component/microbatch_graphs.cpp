#include "d9d/loop/component/microbatch_graphs.h"

#include <ATen/ATen.h>

namespace d9d::detail {

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

std::vector<std::int64_t> versions_of(const std::vector<at::Tensor>& tensors) {
  std::vector<std::int64_t> versions;
  for (const at::Tensor& tensor : tensors) versions.push_back(tensor.defined() ? tensor._version() : 0);
  return versions;
}

at::Tensor after_replay(const at::Tensor& leaf, const std::vector<at::Tensor>& graph_inputs,
                        const std::vector<bool>& is_read_only, const std::vector<at::Tensor>& inputs) {
  if (!leaf.defined()) return leaf;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (is_read_only[i] && leaf.is_same(graph_inputs[i])) return inputs[i];
  }
  return leaf.clone();
}

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

void refuse_types() {
  throw ConfigError(
      "[loop::cuda_graph] expected inputs and state of tensors, numbers, strings and enums, got trainer.cuda_graph for "
      "a task with others. Set it to null.");
}

}  // namespace d9d::detail
