#include "d9d/pipelining/executor/stage_graph.h"

#include <memory>
#include <unordered_set>
#include <utility>

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/utils/grad_layout_contract.h>
#include <torch/csrc/autograd/variable.h>
// accumulate_grad.h must follow the headers above, which it needs
#include <torch/csrc/autograd/functions/accumulate_grad.h>

namespace d9d {
namespace {

namespace ag = torch::autograd;

// Autograd runs a node on the stream that was current when the metadata of the node's input were constructed.
void move_to_current_stream(ag::AccumulateGrad& node) {
  ag::InputMetadata& metadata = node.mutable_input_metadata(0);
  if (metadata.device().is_cpu()) return;
  if (metadata.stream() == c10::impl::VirtualGuardImpl(metadata.device().type()).getStream(metadata.device())) return;
  const auto dtype = metadata.grad_dtype();
  std::destroy_at(&metadata);  // InputMetadata cannot be assigned
  std::construct_at(&metadata, node.variable);
  metadata.set_grad_dtype(dtype);
}

}  // namespace

struct StageGraph::Roots {
  torch::autograd::edge_list edges = {};
  std::vector<std::size_t> outputs = {};  // index of the output of each edge
};

std::vector<at::Tensor> differentiable(const std::vector<at::Tensor>& leaves) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& leaf : leaves) {
    if (leaf.is_floating_point() || leaf.is_complex()) result.push_back(leaf);
  }
  return result;
}

StageGraph::StageGraph(const std::vector<at::Tensor>& outputs) : roots_(std::make_shared<Roots>()) {
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].requires_grad()) continue;
    roots_->edges.push_back(torch::autograd::impl::gradient_edge(outputs[i]));
    roots_->outputs.push_back(i);
  }
}

bool StageGraph::has_graph() const { return roots_ != nullptr && !roots_->edges.empty(); }

void StageGraph::accumulate_on_current_stream() const {
  if (!has_graph()) return;
  std::unordered_set<const ag::Node*> seen;
  std::vector<ag::Node*> to_visit;
  const auto visit = [&](const ag::edge_list& edges) {
    for (const ag::Edge& edge : edges) {
      if (edge.function != nullptr && seen.insert(edge.function.get()).second) to_visit.push_back(edge.function.get());
    }
  };
  visit(roots_->edges);
  while (!to_visit.empty()) {
    ag::Node* const node = to_visit.back();
    to_visit.pop_back();
    if (auto* const leaf = dynamic_cast<ag::AccumulateGrad*>(node)) move_to_current_stream(*leaf);
    visit(node->next_edges());
  }
}

void StageGraph::backward(std::vector<at::Tensor> gradients) {
  const std::shared_ptr<Roots> roots = std::exchange(roots_, nullptr);
  if (roots == nullptr || roots->edges.empty()) return;
  torch::autograd::variable_list values;
  for (const std::size_t output : roots->outputs) values.push_back(std::move(gradients[output]));
  torch::autograd::Engine::get_default_engine().execute(roots->edges, values, /*keep_graph=*/false,
                                                        /*create_graph=*/false, /*accumulate_grad=*/true);
}

}  // namespace d9d
