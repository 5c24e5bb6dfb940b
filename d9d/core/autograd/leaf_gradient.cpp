#include "d9d/core/autograd/leaf_gradient.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/utils/grad_layout_contract.h>
#include <torch/csrc/autograd/variable.h>
// after those that it needs
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include "d9d/base/check.h"

namespace d9d {
namespace {

namespace ag = torch::autograd;

struct LeafHook final : ag::PostAccumulateGradHook {
  explicit LeafHook(GradientHook on_gradient) : hook(std::move(on_gradient)) {}
  void operator()(const ag::Variable& leaf) override { hook.arrived(leaf); }
  GradientHook hook;
};

// Null unless the running backward accumulates into the leaf.
const ag::AccumulateGrad* accumulation(const ag::Node& node, std::size_t index) {
  ag::Node* const next = node.next_edge(index).function.get();
  const auto* const accumulate = dynamic_cast<const ag::AccumulateGrad*>(next);
  if (accumulate == nullptr) return nullptr;
  const auto* const tasks = ag::get_current_graph_task_exec_info();  // empty: the backward computes all gradients
  if (tasks == nullptr || tasks->empty()) return accumulate;
  const auto task = tasks->find(next);
  return task != tasks->end() && task->second.needed_ && task->second.captures_ == nullptr ? accumulate : nullptr;
}

// Whether a user's hooks see a gradient, or replace it, before it is accumulated.
bool has_hooks_before(const ag::AccumulateGrad& accumulate) {
  return !ag::impl::hooks(accumulate.variable).empty() || !accumulate.pre_hooks().empty();
}

}  // namespace

void GradientPlace::put(const at::Tensor& gradient) const {
  has_values ? tensor.add_(gradient) : tensor.copy_(gradient);
}

void GradientHookHandle::remove() noexcept {
  const void* const hook = std::exchange(hook_, nullptr);
  if (hook == nullptr) return;
  std::unique_ptr<ag::PostAccumulateGradHook>& installed = ag::impl::post_acc_grad_hooks(leaf_);
  if (installed.get() == hook) installed.reset();
  leaf_ = at::Tensor();
}

GradientHookHandle on_gradient(const at::Tensor& leaf, GradientHook hook) {
  const auto* const other = dynamic_cast<const LeafHook*>(ag::impl::post_acc_grad_hooks(leaf).get());
  D9D_CHECK(other == nullptr, StateError,
            "[core::autograd] expected one owner of a parameter's gradient, got a second while the first lives, for a "
            "parameter of ",
            leaf.sizes(),
            ". End the first Trainer, GradientManager or BucketedReduction of the model before the next.");
  auto installed = std::make_unique<LeafHook>(std::move(hook));
  GradientHookHandle handle(leaf, installed.get());
  ag::impl::set_post_acc_grad_hooks(leaf, std::move(installed));
  return handle;
}

std::optional<GradientPlace> gradient_place(std::size_t index) {
  const std::shared_ptr<ag::Node> node = ag::get_current_node();
  const ag::AccumulateGrad* const accumulate = node == nullptr ? nullptr : accumulation(*node, index);
  if (accumulate == nullptr || has_hooks_before(*accumulate)) return std::nullopt;
  const at::Tensor& leaf = accumulate->variable;
  if (const auto* const own = dynamic_cast<const LeafHook*>(ag::impl::post_acc_grad_hooks(leaf).get())) {
    if (own->hook.place != nullptr) return own->hook.place();
  }
  const at::Tensor& grad = leaf.grad();
  if (!grad.defined() || !grad.is_contiguous()) return std::nullopt;
  return GradientPlace{.tensor = grad, .has_values = true};
}

}  // namespace d9d
