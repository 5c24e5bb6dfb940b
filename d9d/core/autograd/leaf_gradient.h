// Redirects the gradients of leaves into memory that is not autograd's: a flat buffer, a bucket.
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

// Contiguous memory of the leaf's shape, used on the current stream. Its dtype may differ from the leaf's.
struct GradientPlace {
  at::Tensor tensor;
  bool has_values = false;  // true: accumulate; false: overwrite

  void put(const at::Tensor& gradient) const;  // of any dtype; accumulates or overwrites
};

struct GradientHook {
  // Called each time a backward has finished the leaf's gradient. leaf.grad() holds what autograd accumulated; it is
  // undefined if operators wrote the gradient to the place.
  std::function<void(const at::Tensor& leaf)> arrived;
  // Called by code that writes the gradient right afterwards: from then on the place counts as having values. Null:
  // gradients go to leaf.grad().
  std::function<GradientPlace()> place = nullptr;
};

// Keeps a hook on its leaf; its destructor removes the hook.
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
  const void* hook_ = nullptr;  // null: no hook
};

// Throws StateError while another handle keeps a hook on the leaf: gradients cannot go to two places. The hook may
// refer to anything that lives as long as the handle.
GradientHookHandle on_gradient(const at::Tensor& leaf, GradientHook hook);

// Called in the backward of an operator: returns where to add the gradient of its input `index` (counted over its
// tensors). The operator then returns an undefined tensor for that input. None if the operator must return the
// gradient:
// the input is not a leaf; the leaf has neither a place nor a contiguous gradient; the leaf has hooks of a user, which
// must see whole gradients; or the caller of backward wants the gradient itself.
[[nodiscard]] std::optional<GradientPlace> gradient_place(std::size_t index);

}  // namespace d9d
