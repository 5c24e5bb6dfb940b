#include "d9d/core/autograd/deferred_gradients.h"

#include <map>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/utils/grad_layout_contract.h>
#include <torch/csrc/autograd/variable.h>
// LibTorch's header below does not include what it needs: it must follow the ones above.
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include "d9d/base/check.h"
#include "d9d/core/autograd/leaf_hook.h"
#include "d9d/core/error/error_place.h"

namespace d9d {
namespace {

namespace ag = torch::autograd;

void arrive(const at::Tensor& leaf) {
  if (const detail::LeafHook* const hook = detail::leaf_hook(leaf); hook != nullptr && hook->owner.arrived) {
    hook->owner.arrived(leaf);
  }
}

void run_product(const detail::WaitingGradients::Product& product) {
  GradientPlaces places;
  for (const at::Tensor& leaf : product.leaves) places.push_back(detail::place_of(leaf, detail::leaf_hook(leaf)));
  for (std::size_t i = 0; i < product.reads.size(); ++i) {
    const at::Tensor& tensor = product.reads[i];
    D9D_CHECK(
        !tensor.defined() || static_cast<std::int64_t>(tensor._version()) == product.versions[i], StateError,
        "[core::autograd] expected tensor ", i, " of ", tensor.sizes(),
        ", which a weight's gradient is made of, as it was in the first half of a split backward, got one that was "
        "modified in place. Use the out-of-place operation.");
  }
  const std::vector<at::Tensor> gradients = product.make(product.reads, places);
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined()) continue;
    at::Tensor& grad = product.leaves[i].mutable_grad();
    ag::AccumulateGrad::accumulateGrad(product.leaves[i], grad, gradients[i], /*num_expected_refs=*/1,
                                       [&](at::Tensor&& sum) { grad = std::move(sum); });
  }
}

}  // namespace

WeightGradients::WeightGradients() = default;
WeightGradients::~WeightGradients() = default;
WeightGradients::WeightGradients(WeightGradients&&) noexcept = default;
WeightGradients& WeightGradients::operator=(WeightGradients&&) noexcept = default;

std::size_t WeightGradients::num_products() const { return waiting_ == nullptr ? 0 : waiting_->products.size(); }

void WeightGradients::run() {
  const std::unique_ptr<detail::WaitingGradients> waiting = std::move(waiting_);
  if (waiting == nullptr) return;
  const at::NoGradGuard no_grad;
  std::map<const at::TensorImpl*, std::size_t> num_left;  // number of products not yet run, by leaf
  for (const auto& product : waiting->products) {
    for (const at::Tensor& leaf : product.leaves) ++num_left[leaf.unsafeGetTensorImpl()];
  }
  for (const at::Tensor& leaf : waiting->came) {
    if (!num_left.contains(leaf.unsafeGetTensorImpl())) arrive(leaf);
  }
  for (auto& each : waiting->products) {
    const detail::WaitingGradients::Product product = std::exchange(each, {});
    with_error_place(product.place, [&] { run_product(product); });
    for (const at::Tensor& leaf : product.leaves) {
      if (--num_left[leaf.unsafeGetTensorImpl()] == 0) arrive(leaf);
    }
  }
}

DeferredGradients::DeferredGradients(const std::vector<at::Tensor>& leaves)
    : deferral_(std::make_unique<detail::Deferral>()) {
  for (const at::Tensor& leaf : leaves) {
    if (!leaf.requires_grad()) continue;
    detail::LeafHook* const hook = detail::add_leaf_hook(leaf);
    if (hook == nullptr || hook->deferral != nullptr) continue;
    hook->deferral = deferral_.get();
    deferral_->device = leaf.device();
    leaves_.push_back(leaf);
  }
}

DeferredGradients::~DeferredGradients() {
  for (const at::Tensor& leaf : leaves_) {
    detail::LeafHook* const hook = detail::leaf_hook(leaf);
    if (hook == nullptr || hook->deferral != deferral_.get()) continue;
    hook->deferral = nullptr;
    detail::drop_unused_hook(leaf);
  }
}

WeightGradients DeferredGradients::keep(const std::function<void()>& backward) {
  WeightGradients kept;
  kept.waiting_ = std::make_unique<detail::WaitingGradients>();
  struct Close {
    detail::Deferral& deferral;
    ~Close() { deferral.open = nullptr; }
  } const close{*deferral_};
  deferral_->open = kept.waiting_.get();
  deferral_->stream = detail::current_stream_id(deferral_->device);
  backward();
  return kept;
}

}  // namespace d9d
