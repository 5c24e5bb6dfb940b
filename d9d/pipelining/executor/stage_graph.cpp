#include "d9d/pipelining/executor/stage_graph.h"

#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

namespace d9d {

struct StageGraph::Roots {
  torch::autograd::edge_list edges = {};
  std::vector<std::size_t> outputs = {};  // of each edge
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

void StageGraph::backward(std::vector<at::Tensor> gradients) {
  const std::shared_ptr<Roots> roots = std::exchange(roots_, nullptr);
  if (roots == nullptr || roots->edges.empty()) return;
  torch::autograd::variable_list values;
  for (const std::size_t output : roots->outputs) values.push_back(std::move(gradients[output]));
  torch::autograd::Engine::get_default_engine().execute(roots->edges, values, /*keep_graph=*/false,
                                                        /*create_graph=*/false, /*accumulate_grad=*/true);
}

}  // namespace d9d
