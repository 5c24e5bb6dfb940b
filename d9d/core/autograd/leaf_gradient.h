// Where gradients of leaves go, and when they are made: into memory that is not autograd's, a flat buffer or a bucket,
// and in the second half of a split backward (deferred_gradients.h).
//
// Example
//   const GradientHookHandle handle =
//       on_gradient(weight, {.arrived = [&](const at::Tensor& leaf) { take(leaf); },
//                            .place = [&] { return GradientPlace{.tensor = buffer, .has_values = false}; }});
//   // and in the backward of y = x w^T, whose inputs are x and w:
//   const std::array reads = {x, grad};
//   return {grad.mm(w), make_gradient(1, reads, [](std::span<const at::Tensor> xs, const auto& place) {
//             if (!place) return xs[1].t().mm(xs[0]);
//             place->put(xs[1].t().mm(xs[0]));  // or a product that writes or adds by itself
//             return at::Tensor();
//           })};
//
// An operator that makes its weights' gradients in this way takes part in whatever is done with gradients: its products
// are added where the parameter's owner wants them, and fill the bubbles of pipelines. Other operators are right too:
// autograd accumulates what they return, when they return it.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace d9d {

// Contiguous memory of the leaf's shape, used on the current stream. Its dtype may differ from the leaf's.
struct GradientPlace {
  at::Tensor tensor;
  bool has_values = false;  // true: accumulate; false: overwrite

  void put(const at::Tensor& gradient) const;  // of any dtype; accumulates or overwrites
};

struct GradientHook {
  // Called each time the gradient that a backward makes of the leaf is complete: at its end, or after the products that
  // waited. leaf.grad() holds what autograd accumulated; it is undefined if all of the gradient went to the place.
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

// Of several inputs of an operator, in their order.
using GradientPlaces = std::vector<std::optional<GradientPlace>>;
// Writes or adds each gradient to its place, and returns it where there is none; undefined for the others. `reads`: the
// tensors that were given with it.
using GradientProduct =
    std::function<std::vector<at::Tensor>(std::span<const at::Tensor> reads, const GradientPlaces& places)>;

namespace detail {
[[nodiscard]] std::vector<at::Tensor> make_gradients(std::span<const std::size_t> inputs,
                                                     std::span<const at::Tensor> reads, const GradientProduct& now,
                                                     const std::function<GradientProduct()>& kept);
}  // namespace detail

// Called in the backward of an operator, for inputs (counted over its tensors) whose gradients the running backward
// wants: runs `product` on `reads` once, now or later. Returns what the operator returns for these inputs: undefined
// where the gradient went to a place, or will. A place is missing if the operator must return the gradient: the input
// is not a leaf; the leaf has neither a place nor a contiguous gradient; the leaf has hooks of a user, which must see
// whole gradients; or the caller of backward wants the gradient itself.
//
// Later: a copy of `product`, which must hold no tensors and no autograd context, on the stream on which backward was
// called, without grad mode. `reads`, such as the operator's input and the gradient of its output, are kept without
// their graphs; StateError if one was modified in place meanwhile.
template <class Product>
[[nodiscard]] std::vector<at::Tensor> make_gradients(std::span<const std::size_t> inputs,
                                                     std::span<const at::Tensor> reads, const Product& product) {
  return detail::make_gradients(inputs, reads, std::cref(product), [&] { return GradientProduct(product); });
}
// The same for one input; `product` takes its place and returns one tensor.
template <class Product>
[[nodiscard]] at::Tensor make_gradient(std::size_t input, std::span<const at::Tensor> reads, const Product& product) {
  using Tensors = std::vector<at::Tensor>;
  const auto now = [&](std::span<const at::Tensor> tensors, const GradientPlaces& places) {
    return Tensors{product(tensors, places.front())};
  };
  const auto kept = [&]() -> GradientProduct {
    return [product](std::span<const at::Tensor> tensors, const GradientPlaces& places) {
      return Tensors{product(tensors, places.front())};
    };
  };
  return std::move(detail::make_gradients(std::span(&input, 1), reads, std::cref(now), kept).front());
}

// Where a gradient goes that is made together with others, so that it cannot wait. The operator then returns an
// undefined tensor for that input; without a place, as above, it returns the gradient.
[[nodiscard]] std::optional<GradientPlace> gradient_place(std::size_t input);

}  // namespace d9d
