// What a leaf's post-accumulation hook holds: the owner of its gradient, and who may make it wait. Of leaf_gradient.cpp
// and deferred_gradients.cpp; nobody else includes it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/core/autograd/leaf_gradient.h"

namespace d9d::detail {

// Products of one backward that wait, in the order in which that backward would have run them.
struct WaitingGradients {
  struct Product {
    std::vector<at::Tensor> leaves = {};
    std::vector<at::Tensor> reads = {};
    std::vector<std::int64_t> versions = {};  // of reads, when they were kept
    GradientProduct make = nullptr;
    std::string place = {};  // of errors
  };
  std::vector<Product> products = {};
  std::vector<at::Tensor> came = {};  // leaves whose gradients are complete once the products above have run
};

// Shared by the hooks of a stage's leaves.
struct Deferral {
  WaitingGradients* open = nullptr;  // of the backward that runs now; null: gradients do not wait
  at::Device device = at::kCPU;
  std::int64_t stream = 0;  // current when that backward began; products of other streams do not wait
};

struct LeafHook {
  GradientHook owner = {};       // without `arrived`: none
  Deferral* deferral = nullptr;  // borrowed; null: none
};

// Null unless this library's hook is on the leaf.
[[nodiscard]] LeafHook* leaf_hook(const at::Tensor& leaf);
// The same, with one put on a leaf that has no hook at all; null where a user's is.
[[nodiscard]] LeafHook* add_leaf_hook(const at::Tensor& leaf);
// Takes a hook with neither owner nor deferral off the leaf.
void drop_unused_hook(const at::Tensor& leaf);

// Where to add a gradient of the leaf, whose hook is given. None: neither a place nor a contiguous gradient.
[[nodiscard]] std::optional<GradientPlace> place_of(const at::Tensor& leaf, const LeafHook* hook);
[[nodiscard]] std::int64_t current_stream_id(at::Device device);  // 0 on the CPU

}  // namespace d9d::detail
