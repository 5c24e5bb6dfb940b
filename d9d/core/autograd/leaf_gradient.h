// Where the gradients of leaves go when something keeps them in memory of its own: a flat buffer, a bucket.
//
// Example
//   const GradientHookHandle handle =
//       on_gradient(weight, {.arrived = [&](const at::Tensor& leaf) { take(leaf); },
//                            .place = [&] { return GradientPlace{.tensor = buffer, .has_values = false}; }});
//   // and in the backward of an operator whose second input is a weight:
//   if (const auto place = gradient_place(1)) {
//     at::mm_out(place->tensor, grad.t(), x);      // or add, if place->has_values
//     return {grad_x, at::Tensor()};
//   }
#pragma once

#include <functional>
#include <optional>
#include <utility>

#include <ATen/core/Tensor.h>

namespace d9d {

// Memory of the leaf's shape, contiguous, in a dtype of its own, on the current stream.
struct GradientPlace {
  at::Tensor tensor;
  bool has_values = false;  // add to them; else overwrite

  void put(const at::Tensor& gradient) const;  // of any dtype: adds or overwrites
};

struct GradientHook {
  // Called each time a backward is done with the leaf: leaf.grad() has what autograd added, or nothing where operators
  // have written to the place.
  std::function<void(const at::Tensor& leaf)> arrived;
  // Asked for by whoever fills it at once; counts as having values from then on. None: gradients go to leaf.grad().
  std::function<GradientPlace()> place = nullptr;
};

// Keeps a hook on its leaf; the hook goes with it.
class [[nodiscard]] GradientHookHandle {
 public:
  GradientHookHandle() = default;
  GradientHookHandle(at::Tensor leaf, const void* hook) : leaf_(std::move(leaf)), hook_(hook) {}
  ~GradientHookHandle() { remove(); }
  GradientHookHandle(GradientHookHandle&& other) noexcept
      : leaf_(std::move(other.leaf_)), hook_(std::exchange(other.hook_, nullptr)) {}
  GradientHookHandle& operator=(GradientHookHandle&& other) noexcept {
    remove();
    leaf_ = std::move(other.leaf_);
    hook_ = std::exchange(other.hook_, nullptr);
    return *this;
  }

  void remove() noexcept;

 private:
  at::Tensor leaf_;
  const void* hook_ = nullptr;  // null: none
};

// Throws StateError while another handle keeps a hook there: gradients cannot go to two places. The hook may use
// whatever lives as long as the handle.
GradientHookHandle on_gradient(const at::Tensor& leaf, GradientHook hook);

// In the backward of an operator: where the gradient of its input `index` (counted over its tensors) is to be added.
// The operator then returns an undefined one. None where it has to return the gradient: for inputs that are no leaves,
// for leaves that have neither a place nor a gradient yet or have hooks of a user, which see whole gradients, and where
// the caller of backward wants the gradient itself.
[[nodiscard]] std::optional<GradientPlace> gradient_place(std::size_t index);

}  // namespace d9d
