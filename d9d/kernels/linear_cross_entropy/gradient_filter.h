// The gradient filter of linear_cross_entropy: which part of the logits' gradient its two products leave out.
#pragma once

#include <ATen/core/Tensor.h>

namespace d9d::kernels::detail {

// A tile is left out if each of its gradients of logits is below its row's threshold, eps times the scale of the row:
// the greater of |gradient of loss| and |factor of the softmax|. NaN is not below.
struct GradientFilter {
  double eps = 0;           // 0: no filter
  bool of_hidden = false;   // filters the product that makes the gradient of hidden
  bool of_weights = false;  // filters those that make the gradients of weights
};

// Runs the work of the two products in an order in which `clear`, which clears tiles in place, comes after those that
// are not filtered and before those that are.
template <class Clear, class OfHidden, class OfWeights>
void around_filter(const GradientFilter& filter, const Clear& clear, const OfHidden& of_hidden,
                   const OfWeights& of_weights) {
  const bool filters_hidden = filter.eps > 0 && filter.of_hidden, filters_weights = filter.eps > 0 && filter.of_weights;
  if (!filters_hidden) of_hidden();
  if (!filters_weights) of_weights();
  if (filters_hidden || filters_weights) clear();
  if (filters_hidden) of_hidden();
  if (filters_weights) of_weights();
}

// The filter of the composition of ATen operators, whose tiles are the columns of a chunk. grad_logits [T, C],
// threshold [T] in the same dtype. Returns which columns are kept, [C] bool. Does not synchronise.
[[nodiscard]] at::Tensor kept_columns_aten(const at::Tensor& grad_logits, const at::Tensor& threshold);

}  // namespace d9d::kernels::detail
