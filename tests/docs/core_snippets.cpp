// Code that is shown in the pages about d9d/core but not part of a program: compiled with the library, never run.
// tools/check_snippets.py checks that the pages agree with it.
#include <iostream>

#include <ATen/ATen.h>

#include "d9d/core/tree/tree.h"
#include "d9d/data/view/token_sample.h"

namespace core_pages {

// docs/trees.md
template <d9d::TensorTree Tree>
Tree to_device(const Tree& tree, at::Device device) {
  return d9d::tree_map([&](const at::Tensor& leaf) { return leaf.defined() ? leaf.to(device) : leaf; }, tree);
}

template <d9d::TensorTree Tree>
void print_shapes(const Tree& tree) {
  for (const auto& [path, leaf] : d9d::tree_leaves_with_path(tree)) std::cout << path << ' ' << leaf.sizes() << '\n';
}

template d9d::TokenBatch to_device(const d9d::TokenBatch&, at::Device);
template void print_shapes(const d9d::TokenBatch&);

}  // namespace core_pages
