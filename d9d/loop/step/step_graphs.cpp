#include "d9d/loop/step/step_graphs.h"

#include <map>
#include <utility>

#include <ATen/ATen.h>

#include "d9d/loop/graphs/graph_remedies.h"

namespace d9d {
namespace {

std::vector<at::Tensor> copies_of(const TensorRefs& tensors) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : tensors) copies.push_back(tensor.defined() ? tensor.clone() : at::Tensor());
  return copies;
}

// Copies each defined source to its target, with one launch per dtype.
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

}  // namespace

StepGraphs::StepGraphs(const CudaGraphConfig& config, MakeDeviceGraph make_graph, c10::Device device, Module& module)
    : make_graph_(detail::with_remedies(std::move(make_graph))), device_(device), memory_(module), kinds_(config) {}

StepGraph* StepGraphs::begin(std::span<const std::unique_ptr<AnyMicrobatch>> run,
                             const std::vector<std::vector<bool>>& received) {
  detail::GraphKeyWriter writer(device_);
  for (const auto& microbatch : run) microbatch->write_key(writer);
  writer.write(received);
  const auto key = writer.key();
  if (key && memory_.has_changed()) kinds_.clear();
  StepGraph* const graph = key ? kinds_.find(*key) : nullptr;
  (graph == nullptr ? counts_.eager : counts_.replays) += std::ssize(run);
  if (graph == nullptr) return nullptr;
  const bool is_captured = graph->is_captured();
  if (!is_captured) {
    *graph = StepGraph();
    graph->program.emplace(make_graph_);
    graph->after.resize(run.size());
  }
  std::vector<at::Tensor> sources, targets;
  for (std::size_t i = 0; i < run.size(); ++i) {
    const TensorRefs own = run[i]->tensors();
    if (is_captured) {
      sources.insert(sources.end(), own.begin(), own.end());
      targets.insert(targets.end(), graph->inputs[i].begin(), graph->inputs[i].end());
      continue;
    }
    graph->inputs.push_back(copies_of(own));
    auto input = graph->inputs.back().begin();
    for (at::Tensor& leaf : own) leaf = *input++;
  }
  copy_values(sources, targets);
  return graph;
}

GraphCounts StepGraphs::counts() const {
  GraphCounts counts = counts_;
  kinds_.for_each([&](const StepGraph& graph) {
    if (graph.is_captured()) counts.graphs += graph.program->num_graphs();
  });
  return counts;
}

}  // namespace d9d
