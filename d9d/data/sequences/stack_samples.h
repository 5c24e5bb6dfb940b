// A collate function for samples whose tensors have equal shapes: it stacks each tensor along a new first dimension.
//
// Example
//   struct Picture {
//     at::Tensor pixels;  // [3, H, W]; in a batch [B, 3, H, W]
//     at::Tensor label;   // [] int64; in a batch [B]
//     static constexpr auto fields() { return record<Picture>(field("pixels", &Picture::pixels), ...); }
//   };
//   auto stream = make_pack_stream<Picture>(context, pictures, stack_samples<Picture>, config, {.seed = 1337});
#pragma once

#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "d9d/core/tree/tree.h"

namespace d9d {

namespace detail {

// Detects members of a tensor tree that are not tensors and cannot hold one.
struct IsCarried {
  template <class T>
  using Of = std::bool_constant<!TreeOf<T, at::Tensor>>;
};

// Returns, for each leaf, the stacked tensors of all samples; samples[b][i] is the path and the tensor of leaf i of
// sample b.
[[nodiscard]] std::vector<at::Tensor> stack_leaves(
    const std::vector<std::vector<std::pair<std::string, at::Tensor>>>& samples);

}  // namespace detail

// Makes a batch of B samples with the same structure. Each tensor [...] is stacked into a new one [B, ...] of its dtype
// and device. Every member of Sample must be a tensor or hold tensors alone; a number is a tensor of shape []. Throws
// ConfigError if there is no sample, or if a tensor has no values or another shape or dtype than that of the first
// sample, and StateError if the structure differs (an optional that is empty, a list of another size).
template <TensorTree Sample>
[[nodiscard]] Sample stack_samples(std::span<const Sample> samples) {
  static_assert(
      !detail::Holds<detail::IsCarried, Sample>::value,
      "stack_samples<Sample>: every member of Sample must be a tensor, or hold tensors alone. Make a number a "
      "tensor, at::scalar_tensor(number), or write a collate of your own");
  std::vector<std::vector<std::pair<std::string, at::Tensor>>> leaves;
  for (const Sample& sample : samples) {
    check_same_structure(samples.front(), sample);
    leaves.push_back(tree_leaves_with_path(sample));
  }
  const std::vector<at::Tensor> stacked = detail::stack_leaves(leaves);
  auto next = stacked.begin();
  return tree_map([&next](const at::Tensor&) { return *next++; }, samples.front());
}

}  // namespace d9d
