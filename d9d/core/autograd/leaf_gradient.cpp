#include "d9d/core/autograd/leaf_gradient.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/utils/grad_layout_contract.h>
#include <torch/csrc/autograd/variable.h>
// accumulate_grad.h does not include all that it uses, so it comes after those headers
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include "d9d/base/check.h"
#include "d9d/core/autograd/leaf_hook.h"

namespace d9d {
namespace {

namespace ag = torch::autograd;

// Returns the node that accumulates the gradient of input `index` into a leaf; null if the input is not a leaf, or if
// the running backward does not accumulate its gradient.
const ag::AccumulateGrad* accumulation(const ag::Node& node, std::size_t index) {
  ag::Node* const next = node.next_edge(index).function.get();
  const auto* const accumulate = dynamic_cast<const ag::AccumulateGrad*>(next);
  if (accumulate == nullptr) return nullptr;
  const auto* const tasks = ag::get_current_graph_task_exec_info();  // empty: the backward computes all gradients
  if (tasks == nullptr || tasks->empty()) return accumulate;
  const auto task = tasks->find(next);
  return task != tasks->end() && task->second.needed_ && task->second.captures_ == nullptr ? accumulate : nullptr;
}

// Returns whether the leaf has hooks of a user that see or replace its gradient before autograd accumulates it.
bool has_hooks_before(const ag::AccumulateGrad& accumulate) {
  return !ag::impl::hooks(accumulate.variable).empty() || !accumulate.pre_hooks().empty();
}

// Where the gradient of an operator's input goes.
struct Target {
  const at::Tensor* leaf = nullptr;  // null: the operator must return the gradient
  const detail::LeafHook* hook = nullptr;

  [[nodiscard]] std::optional<GradientPlace> place() const {
    return leaf == nullptr ? std::nullopt : detail::place_of(*leaf, hook);
  }
};
using Targets = c10::SmallVector<Target, 4>;

Target target_of(const ag::Node* node, std::size_t input) {
  const ag::AccumulateGrad* const accumulate = node == nullptr ? nullptr : accumulation(*node, input);
  if (accumulate == nullptr || has_hooks_before(*accumulate)) return {};
  return {.leaf = &accumulate->variable, .hook = detail::leaf_hook(accumulate->variable)};
}

// Returns the list to which a deferred product of these leaves is added; null if the gradient of one of them cannot be
// deferred.
detail::WaitingGradients* waiting_for(const Targets& targets) {
  detail::WaitingGradients* waiting = nullptr;
  for (const Target& target : targets) {
    const detail::Deferral* const deferral = target.hook == nullptr ? nullptr : target.hook->deferral;
    if (deferral == nullptr || deferral->open == nullptr) return nullptr;
    if (deferral->stream != detail::current_stream_id(deferral->device)) return nullptr;
    waiting = deferral->open;
  }
  return waiting;
}

detail::WaitingGradients::Product waiting_product(const Targets& targets, std::span<const at::Tensor> reads,
                                                  GradientProduct make, std::string place) {
  detail::WaitingGradients::Product product{.make = std::move(make), .place = std::move(place)};
  for (const Target& target : targets) product.leaves.push_back(*target.leaf);
  for (const at::Tensor& tensor : reads) {
    product.reads.push_back(tensor.defined() ? tensor.detach() : tensor);
    product.versions.push_back(tensor.defined() ? static_cast<std::int64_t>(tensor._version()) : 0);
  }
  return product;
}

// Autograd calls this in each backward that reaches the leaf: after it has accumulated the leaf's gradient, and also if
// it got no gradient for the leaf.
struct InstalledHook final : ag::PostAccumulateGradHook {
  void operator()(const ag::Variable& leaf) override {
    if (hook.deferral != nullptr && hook.deferral->open != nullptr) return defer(leaf, *hook.deferral->open);
    if (hook.owner.arrived) hook.owner.arrived(leaf);
  }
  // Postpones `arrived` until the deferred products have run. Moves the gradient that autograd has accumulated so far
  // to the memory to which these products add theirs.
  void defer(const at::Tensor& leaf, detail::WaitingGradients& waiting) const {
    waiting.leaves.push_back(leaf);
    at::Tensor& grad = leaf.mutable_grad();
    if (!grad.defined()) return;
    const at::NoGradGuard no_grad;
    if (hook.owner.place) {
      hook.owner.place().put(std::exchange(grad, at::Tensor()));
    } else if (grad.has_storage() && grad.storage().use_count() > 1) {
      grad = grad.clone();  // a deferred product may still read this tensor of the operator
    }
  }
  detail::LeafHook hook;
};

}  // namespace

void GradientPlace::put(const at::Tensor& gradient) const {
  has_values ? tensor.add_(gradient) : tensor.copy_(gradient);
}

namespace detail {

LeafHook* leaf_hook(const at::Tensor& leaf) {
  auto* const installed = dynamic_cast<InstalledHook*>(ag::impl::post_acc_grad_hooks(leaf).get());
  return installed == nullptr ? nullptr : &installed->hook;
}

LeafHook* add_leaf_hook(const at::Tensor& leaf) {
  if (ag::impl::post_acc_grad_hooks(leaf) == nullptr) {
    ag::impl::set_post_acc_grad_hooks(leaf, std::make_unique<InstalledHook>());
  }
  return leaf_hook(leaf);
}

void drop_unused_hook(const at::Tensor& leaf) {
  const LeafHook* const hook = leaf_hook(leaf);
  if (hook == nullptr || hook->owner.arrived || hook->deferral != nullptr) return;
  ag::impl::post_acc_grad_hooks(leaf).reset();
}

std::optional<GradientPlace> place_of(const at::Tensor& leaf, const LeafHook* hook) {
  if (hook != nullptr && hook->owner.place) return hook->owner.place();
  const at::Tensor& grad = leaf.grad();
  if (!grad.defined() || !grad.is_contiguous()) return std::nullopt;
  return GradientPlace{.tensor = grad, .has_values = true};
}

std::int64_t current_stream_id(at::Device device) {
  return device.is_cpu() ? 0 : c10::impl::VirtualGuardImpl(device.type()).getStream(device).id();
}

std::vector<at::Tensor> make_gradients(std::span<const std::size_t> inputs, std::span<const at::Tensor> reads,
                                       const GradientProduct& now, const std::function<GradientProduct()>& kept) {
  const std::shared_ptr<ag::Node> node = ag::get_current_node();
  Targets targets;
  for (const std::size_t input : inputs) targets.push_back(target_of(node.get(), input));
  if (auto* const waiting = waiting_for(targets)) {
    waiting->products.push_back(waiting_product(targets, reads, kept(), "in backward of " + node->name()));
    return std::vector<at::Tensor>(inputs.size());
  }
  GradientPlaces places;
  places.reserve(inputs.size());
  for (const Target& target : targets) places.push_back(target.place());
  return now(reads, places);
}

}  // namespace detail

void GradientHookHandle::remove() noexcept {
  const void* const hook = std::exchange(hook_, nullptr);
  if (hook == nullptr) return;
  if (detail::LeafHook* const installed = detail::leaf_hook(leaf_); installed == hook) {
    installed->owner = {};
    detail::drop_unused_hook(leaf_);
  }
  leaf_ = at::Tensor();
}

GradientHookHandle on_gradient(const at::Tensor& leaf, GradientHook hook) {
  detail::LeafHook* installed = detail::leaf_hook(leaf);
  D9D_CHECK(installed == nullptr || !installed->owner.arrived, StateError,
            "[core::autograd] expected one owner of a parameter's gradient, got a second while the first lives, for a "
            "parameter of ",
            leaf.sizes(),
            ". End the first Trainer, GradientManager or BucketedReduction of the model before the next.");
  if (installed == nullptr) {
    ag::impl::set_post_acc_grad_hooks(leaf, std::make_unique<InstalledHook>());
    installed = detail::leaf_hook(leaf);
  }
  installed->owner = std::move(hook);
  return {leaf, installed};
}

std::optional<GradientPlace> gradient_place(std::size_t input) {
  return target_of(ag::get_current_node().get(), input).place();
}

}  // namespace d9d
