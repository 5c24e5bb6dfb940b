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
    std::vector<std::int64_t> versions = {};  // versions of `reads` when they were kept
    GradientProduct make = nullptr;
    std::string place = {};  // the place in the program that errors name
  };
  std::vector<Product> products = {};
  std::vector<at::Tensor> came = {};  // leaves whose gradients are complete once the products above have run
};

// Shared by the hooks of a stage's leaves.
struct Deferral {
  WaitingGradients* open = nullptr;  // products of the running backward; null: gradients are not deferred
  at::Device device = at::kCPU;
  std::int64_t stream = 0;  // the stream on which that backward began; products of other streams are not deferred
};

struct LeafHook {
  GradientHook owner = {};       // no owner if `arrived` is null
  Deferral* deferral = nullptr;  // borrowed; null: none
};

// Returns this library's hook on the leaf; null if there is none.
[[nodiscard]] LeafHook* leaf_hook(const at::Tensor& leaf);
// Returns this library's hook on the leaf, and adds one if there is none. Null if the leaf has a hook of a user.
[[nodiscard]] LeafHook* add_leaf_hook(const at::Tensor& leaf);
// Takes a hook with neither owner nor deferral off the leaf.
void drop_unused_hook(const at::Tensor& leaf);

// Returns the tensor in which to accumulate a gradient of the leaf: the hook's place, or else a contiguous leaf.grad();
// none if there is neither. hook: leaf_hook(leaf), may be null.
[[nodiscard]] std::optional<GradientPlace> place_of(const at::Tensor& leaf, const LeafHook* hook);
[[nodiscard]] std::int64_t current_stream_id(at::Device device);  // 0 on the CPU

}  // namespace d9d::detail
