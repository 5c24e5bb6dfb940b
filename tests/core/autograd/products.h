// An operator whose weights' gradients may wait, and an owner of gradients.
//
// Example
//   const at::Tensor y = times(x, {weight});
//   const Owner owner(weight, /*keeps=*/true);
//   y.sum().backward();                             // owner.gradient()
#pragma once

#include <array>
#include <span>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include "d9d/base/check.h"
#include "d9d/core/autograd/leaf_gradient.h"

namespace d9d::test {

constexpr std::int64_t kProductRows = 7,
                       kProductWidth = 5;  // products of weights' gradients are sums of kProductRows terms

// x w_1 + x w_2 + ...: the gradients of the weights are made in one go.
struct Products : torch::autograd::Function<Products> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, at::TensorList weights) {
    torch::autograd::variable_list saved = {x};
    saved.insert(saved.end(), weights.begin(), weights.end());
    context->save_for_backward(saved);
    at::Tensor sum = x.mm(weights[0]);
    for (const at::Tensor& weight : weights.slice(1)) sum = sum + x.mm(weight);
    return sum;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    const torch::autograd::variable_list saved = context->get_saved_variables();
    torch::autograd::variable_list results(saved.size());
    std::vector<std::size_t> wanted;
    for (std::size_t i = 1; i < saved.size(); ++i) {
      if (context->needs_input_grad(i)) wanted.push_back(i);
      if (!context->needs_input_grad(0)) continue;
      const at::Tensor part = grads[0].mm(saved[i].t());
      results[0] = results[0].defined() ? results[0] + part : part;
    }
    const std::array reads = {saved[0], grads[0]};
    const auto product = [](std::span<const at::Tensor> tensors, const GradientPlaces& places) {
      D9D_CHECK(!tensors[1].isnan().any().item<bool>(), StateError, "the product breaks");
      std::vector<at::Tensor> returned(places.size());
      for (std::size_t i = 0; i < places.size(); ++i) {
        const at::Tensor made = tensors[0].t().mm(tensors[1]);
        places[i] ? places[i]->put(made) : void(returned[i] = made);
      }
      return returned;
    };
    std::vector<at::Tensor> made = make_gradients(wanted, reads, product);
    for (std::size_t i = 0; i < wanted.size(); ++i) results[wanted[i]] = std::move(made[i]);
    return results;
  }
};

inline at::Tensor times(const at::Tensor& x, const std::vector<at::Tensor>& weights) {
  return Products::apply(x, at::TensorList(weights));
}

inline at::Tensor numbers(at::IntArrayRef shape, double seed) {
  return at::sin(at::arange(c10::multiply_integers(shape), at::kDouble) * 0.7 + seed).view(shape);
}

inline at::Tensor weight_of(double seed) {
  return numbers({kProductWidth, kProductWidth}, seed).set_requires_grad(true);
}
inline at::Tensor input_of(double seed) { return numbers({kProductRows, kProductWidth}, seed).set_requires_grad(true); }

// What an owner of gradients has: the sum in its memory, as FSDP and buckets, or in .grad().
struct Owner {
  Owner(const at::Tensor& weight, bool keeps) : leaf(weight), buffer(at::zeros_like(weight)), has_memory(keeps) {
    if (!has_memory) return;
    hook = on_gradient(leaf, {.arrived =
                                  [this](const at::Tensor& grad_of) {
                                    const at::NoGradGuard no_grad;
                                    ++num_arrivals;
                                    if (grad_of.grad().defined())
                                      place().put(std::exchange(grad_of.mutable_grad(), at::Tensor()));
                                    at_arrival = buffer.clone();
                                  },
                              .place = [this] { return place(); }});
  }
  [[nodiscard]] GradientPlace place() { return {buffer, std::exchange(has_values, true)}; }
  [[nodiscard]] at::Tensor gradient() const {
    if (has_memory) return buffer;
    return leaf.grad().defined() ? leaf.grad() : at::zeros_like(leaf);
  }

  at::Tensor leaf, buffer, at_arrival;
  bool has_memory, has_values = false;
  int num_arrivals = 0;
  GradientHookHandle hook;
};

}  // namespace d9d::test
