#include "d9d/loop/step/step_graphs.h"

#include <utility>

namespace d9d {

StepGraphs::StepGraphs(const CudaGraphConfig& config, MakeDeviceGraph make_graph, c10::Device device,
                       const Module& module)
    : make_graph_(detail::with_remedies(std::move(make_graph))), device_(device), memory_(module), kinds_(config) {}

StepGraph* StepGraphs::begin(const MicrobatchPack& pack) {
  detail::GraphKeyWriter writer(device_);
  for (const auto& microbatch : pack) microbatch->write_key(writer);
  const auto key = writer.key();
  if (memory_.has_changed()) kinds_.clear();
  StepGraph* const graph = key ? kinds_.find(*key) : nullptr;
  kinds_.end_step();
  (graph == nullptr ? counts_.eager : counts_.replays) += std::ssize(pack);
  if (graph == nullptr) return nullptr;
  const bool is_captured = graph->is_captured();
  if (!is_captured) {
    *graph = StepGraph();
    graph->program.emplace(make_graph_);
    graph->after.resize(pack.size());
  }
  std::vector<at::Tensor> sources, targets;
  for (std::size_t i = 0; i < pack.size(); ++i) {
    const std::vector<at::Tensor> own = detail::values_of(pack[i]->tensors());
    if (is_captured) {
      sources.insert(sources.end(), own.begin(), own.end());
      targets.insert(targets.end(), graph->inputs[i].begin(), graph->inputs[i].end());
      continue;
    }
    graph->inputs.push_back(detail::copies_of(own));
    auto input = graph->inputs.back().begin();
    for (at::Tensor& leaf : pack[i]->tensors()) leaf = *input++;
  }
  detail::copy_values(sources, targets);
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
