#include "d9d/data/pack/fixed_count_packer.h"

#include <ATen/ATen.h>

namespace d9d::detail {

at::Tensor copy_of_leaf(const at::Tensor& leaf) { return leaf.defined() ? leaf.detach().clone() : leaf; }

void check_unchanged(const at::Tensor& copy, const at::Tensor& leaf) {
  if (!leaf.defined() || leaf.layout() != at::kStrided) return;
  const at::Tensor is_same = (copy == leaf).logical_or((copy != copy).logical_and(leaf != leaf));  // NaN equals NaN
  D9D_CHECK(is_same.all().item<bool>(), StateError,
            "[data::FixedCountMicrobatchPacker] expected microbatches with memory of their own, got a first one that "
            "changed when the next were made, a tensor of shape ",
            leaf.sizes(), ". Return new tensors from collate, or clones.");
}

}  // namespace d9d::detail
