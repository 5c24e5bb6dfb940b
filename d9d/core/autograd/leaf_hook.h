// The content of a leaf's post-accumulation hook: the owner of its gradient, and the split backward that may defer it.
// Internal to leaf_gradient.cpp and deferred_gradients.cpp; nothing else includes it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/core/autograd/leaf_gradient.h"

namespace d9d::detail {

// The deferred products of one backward, in the order in which that backward would have run them.
struct WaitingGradients {
  struct Product {
    std::vector<at::Tensor> leaves = {};
    std::vector<at::Tensor> reads = {};
    std::vector<std::int64_t> versions = {};  // version counters of `reads` when the product was deferred
    GradientProduct make = nullptr;
    std::string place = {};  // named by errors: "in backward of <node>"
  };
  std::vector<Product> products = {};
  std::vector<at::Tensor> leaves = {};  // the gradients of these are complete when the products have run
};

// Shared by the hooks of a stage's leaves.
struct Deferral {
  WaitingGradients* open = nullptr;  // where the running backward adds its products; null: it defers none
  at::Device device = at::kCPU;
  std::int64_t stream = 0;  // id of the stream that runs backward; products of other streams are not deferred
};

struct LeafHook {
  GradientHook owner = {};       // no owner if `arrived` is null
  Deferral* deferral = nullptr;  // borrowed; null: none
};

// Returns this library's hook on the leaf; null if there is none.
[[nodiscard]] LeafHook* leaf_hook(const at::Tensor& leaf);
// Returns the leaf's hook, and installs one first if the leaf has none; null if the leaf has a hook of a user.
[[nodiscard]] LeafHook* add_leaf_hook(const at::Tensor& leaf);
// Removes the leaf's hook if it has neither an owner nor a deferral.
void drop_unused_hook(const at::Tensor& leaf);

// Returns where to accumulate a gradient of the leaf: the memory that the owner in `hook` names (`hook` may be null),
// else leaf.grad(). Returns nullopt if the owner names none and leaf.grad() is undefined or not contiguous.
[[nodiscard]] std::optional<GradientPlace> place_of(const at::Tensor& leaf, const LeafHook* hook);
[[nodiscard]] std::int64_t current_stream_id(at::Device device);  // 0 on the CPU

}  // namespace d9d::detail
