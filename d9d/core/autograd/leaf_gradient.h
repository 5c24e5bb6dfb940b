// Controls where gradients of leaves are stored and when they are computed: they can go to memory that autograd does
// not own (a main_grad buffer or a bucket), and can be deferred to the second half of a split backward
// (deferred_gradients.h).
//
// Example
//   const GradientHookHandle handle =
//       on_gradient(weight, {.arrived = [&](const at::Tensor& leaf) { take(leaf); },
//                            .place = [&] { return GradientPlace{.tensor = buffer, .has_values = false}; }});
//   // and in the backward of y = x w^T, whose inputs are x and w:
//   const std::array reads = {x, grad};
//   return {grad.mm(w), make_gradient(1, reads, [](std::span<const at::Tensor> xs, const auto& place) {
//             if (!place) return xs[1].t().mm(xs[0]);
//             place->put(xs[1].t().mm(xs[0]));  // or a GEMM that writes or accumulates by itself
//             return at::Tensor();
//           })};
//
// An operator that computes weight gradients with make_gradient() supports both: they accumulate in the memory that the
// owner of the parameter names, and can be computed later to fill pipeline bubbles. Other operators are correct too:
// autograd accumulates each gradient as soon as they return it.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace d9d {

// Memory into which an operator writes the gradient of a leaf instead of returning it, such as a part of a bucket:
// contiguous, in the leaf's shape, maybe in another dtype. Use it on the current stream.
struct GradientPlace {
  at::Tensor tensor;
  bool has_values = false;  // true: accumulate; false: overwrite

  void put(const at::Tensor& gradient) const;  // gradient: of any dtype
};

struct GradientHook {
  // Called each time the leaf's gradient of one backward is complete: when that backward has accumulated it, or after
  // the deferred products. leaf.grad() holds the part that autograd accumulated; it is undefined if all of the gradient
  // went to the memory that `place` returned.
  std::function<void(const at::Tensor& leaf)> arrived;
  // Returns the memory for the gradient. The caller writes to it immediately, so from the next call on `has_values`
  // must be true. Null: gradients go to leaf.grad().
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

// Puts a hook on a leaf. Throws StateError while another handle keeps a hook on it: gradients cannot go to two places.
// The hook may refer to anything that lives as long as the handle.
GradientHookHandle on_gradient(const at::Tensor& leaf, GradientHook hook);

// The places of several inputs of an operator, in the order of the inputs.
using GradientPlaces = std::vector<std::optional<GradientPlace>>;
// Computes gradients of several inputs. Writes or adds each gradient to its place and returns an undefined tensor for
// it, or returns the gradient if it has no place. `reads`: the tensors that were passed to make_gradients().
using GradientProduct =
    std::function<std::vector<at::Tensor>(std::span<const at::Tensor> reads, const GradientPlaces& places)>;

namespace detail {
[[nodiscard]] std::vector<at::Tensor> make_gradients(std::span<const std::size_t> inputs,
                                                     std::span<const at::Tensor> reads, const GradientProduct& now,
                                                     const std::function<GradientProduct()>& kept);
}  // namespace detail

// Runs `product` on `reads` once, immediately or deferred. Call it in the backward of an operator. inputs: positions
// among the operator's tensor inputs; the running backward must need the gradients of these inputs. Returns the tensors
// that the operator must return for them: undefined tensors if `product` is deferred, else the result of `product`,
// which is undefined for each gradient that was written to a place. An input has no place if it is not a leaf; if the
// leaf has neither a GradientHook::place nor a contiguous gradient; if the leaf has hooks of a user, which must see
// whole gradients; or if the caller of backward wants the gradient itself.
//
// If the product is deferred, a copy of `product` runs on the stream on which backward was called, without grad mode;
// so `product` must hold no tensors and no autograd context. `reads`, such as the operator's input and the gradient of
// its output, are kept without their graphs. WeightGradients::run() throws StateError if one of them was modified in
// place meanwhile.
template <class Product>
[[nodiscard]] std::vector<at::Tensor> make_gradients(std::span<const std::size_t> inputs,
                                                     std::span<const at::Tensor> reads, const Product& product) {
  return detail::make_gradients(inputs, reads, std::cref(product), [&] { return GradientProduct(product); });
}
// Calls make_gradients() for one input; `product` takes one place and returns one tensor.
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

// Returns the place of a gradient that an operator computes together with others and so cannot defer. The operator
// writes the gradient there and returns an undefined tensor for that input. Returns nullopt in the cases in which, as
// make_gradients() says, an input has no place: the operator then returns the gradient.
[[nodiscard]] std::optional<GradientPlace> gradient_place(std::size_t input);

}  // namespace d9d
