#include "tests/kernels/split_backward_testing.h"

#include <memory>

#include <ATen/core/grad_mode.h>

#include "d9d/base/check.h"
#include "d9d/core/autograd/deferred_gradients.h"
#include "d9d/core/autograd/leaf_gradient.h"

namespace d9d::testing {
namespace {

struct Sum {
  Sum(const at::Tensor& weight, GradientMemory memory) : leaf(weight) {
    if (memory == GradientMemory::kAutograd) return;
    buffer = at::empty_like(
        weight, memory == GradientMemory::kOwnFloat ? weight.options().dtype(at::kFloat) : weight.options());
    hook = on_gradient(weight, {.arrived =
                                    [this](const at::Tensor& arrived) {
                                      const at::NoGradGuard no_grad;
                                      const at::Tensor grad = std::exchange(arrived.mutable_grad(), at::Tensor());
                                      if (grad.defined()) place().put(grad);
                                    },
                                .place = [this] { return place(); }});
  }
  [[nodiscard]] GradientPlace place() { return {buffer, std::exchange(has_values, true)}; }

  at::Tensor leaf, buffer;
  bool has_values = false;
  GradientHookHandle hook;
};

}  // namespace

SplitGradients gradients_of(const TensorFunction& op, const std::vector<at::Tensor>& inputs, bool is_split,
                            GradientMemory memory) {
  std::vector<at::Tensor> weights;
  for (std::size_t i = 1; i < inputs.size(); ++i) weights.push_back(leaf(inputs[i]));
  std::vector<std::unique_ptr<Sum>> sums;
  for (const at::Tensor& weight : weights) sums.push_back(std::make_unique<Sum>(weight, memory));
  SplitGradients result;
  DeferredGradients deferred(weights);
  std::vector<WeightGradients> waiting;
  for (const double factor : {1.0, 0.5}) {
    const bool is_differentiable = at::isFloatingType(inputs[0].scalar_type());
    const at::Tensor x = is_differentiable ? leaf(inputs[0] * factor) : inputs[0];
    std::vector<at::Tensor> arguments = {x};
    arguments.insert(arguments.end(), weights.begin(), weights.end());
    const std::vector<at::Tensor> outputs = op(arguments);
    std::vector<at::Tensor> grads;
    for (const at::Tensor& output : outputs) {
      grads.push_back(values(output.sizes(), 10 + grads.size(), output.scalar_type()).to(output.device()) * factor);
    }
    if (!is_split) {
      backward(outputs, grads);
    } else {
      waiting.push_back(deferred.keep([&] { backward(outputs, grads); }));
      result.num_waited += static_cast<std::int64_t>(waiting.back().num_products());
    }
    if (is_differentiable) result.of_inputs.push_back(x.grad());
  }
  for (WeightGradients& each : waiting) each.run();
  for (const auto& sum : sums) result.of_weights.push_back(sum->buffer.defined() ? sum->buffer : sum->leaf.grad());
  return result;
}

std::string split_difference(const TensorFunction& op, const std::vector<at::Tensor>& inputs,
                             std::int64_t num_products) {
  for (const GradientMemory memory : {GradientMemory::kAutograd, GradientMemory::kOwn, GradientMemory::kOwnFloat}) {
    const SplitGradients whole = gradients_of(op, inputs, /*is_split=*/false, memory);
    const SplitGradients split = gradients_of(op, inputs, /*is_split=*/true, memory);
    const std::string place = cat(" with memory ", static_cast<int>(memory));
    if (split.num_waited != 2 * num_products) return cat(split.num_waited, " products waited", place);
    for (std::size_t i = 0; i < whole.of_inputs.size(); ++i) {
      if (!at::equal(split.of_inputs[i], whole.of_inputs[i])) return cat("input of microbatch ", i, place);
    }
    for (std::size_t i = 0; i < whole.of_weights.size(); ++i) {
      if (!split.of_weights[i].defined()) return cat("no gradient of weight ", i, place);
      if (!at::equal(split.of_weights[i], whole.of_weights[i])) return cat("weight ", i, place);
    }
  }
  return "";
}

}  // namespace d9d::testing
