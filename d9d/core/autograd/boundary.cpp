#include "d9d/core/autograd/boundary.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/utils/grad_layout_contract.h>
#include <torch/csrc/autograd/variable.h>

namespace d9d {
namespace {

namespace ag = torch::autograd;

struct BoundaryNode final : ag::Node {
  explicit BoundaryNode(std::function<void()> on_apply) : action(std::move(on_apply)) {}
  ag::variable_list apply(ag::variable_list&& grads) override {
    action();
    return std::move(grads);
  }
  std::string name() const override { return "d9d::Boundary"; }
  std::function<void()> action;
};

}  // namespace

bool on_backward(const std::vector<std::reference_wrapper<at::Tensor>>& tensors, std::function<void()> action) {
  if (!at::GradMode::is_enabled()) return false;
  std::vector<std::reference_wrapper<at::Tensor>> differentiable;
  ag::edge_list edges;
  for (const auto& tensor : tensors) {
    if (!tensor.get().defined() || !tensor.get().requires_grad()) continue;
    differentiable.push_back(tensor);
    edges.push_back(ag::impl::gradient_edge(tensor));
  }
  if (differentiable.empty()) return false;
  const std::shared_ptr<ag::Node> node(new BoundaryNode(std::move(action)), ag::deleteNode);
  node->set_next_edges(std::move(edges));
  for (const auto& tensor : differentiable) {
    at::Tensor identity = tensor.get().detach();
    ag::set_history(identity, node);
    tensor.get() = identity;
  }
  return true;
}

void at_end_of_backward(std::function<void()> action) {
  ag::Engine::get_default_engine().queue_callback(std::move(action));
}

}  // namespace d9d
