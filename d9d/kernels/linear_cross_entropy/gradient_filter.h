// The gradient filter of linear_cross_entropy: which part of the logits' gradient its two products leave out.
//
// Example
//   const at::Tensor threshold = ...;                                                 // [T]
//   for (const LogitPart& part : kept_parts(kept_tiles_aten(grad_logits, threshold), grad_logits.sizes()))
//     accumulate(grad_hidden of part.rows, grad_logits of part, weight of part.columns);
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace d9d::kernels::detail {

// A tile is left out if each of its gradients of logits is below its row's threshold, eps times the scale of the row:
// the greater of |gradient of loss| and |factor of the softmax|. NaN is not below.
struct GradientFilter {
  double eps = 0;           // 0: no filter
  bool of_hidden = false;   // filters the product that makes the gradient of hidden
  bool of_weights = false;  // filters those that make the gradients of weights
};

// Runs the work of the two products in an order in which `filter`, which clears tiles in place, comes after those that
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

// A tile of the composition of ATen operators.
inline constexpr std::int64_t kTileRows = 64;
inline constexpr std::int64_t kTileColumns = 64;

// grad_logits [T, C], threshold [T] in the same dtype. Returns which tiles are kept:
// [ceil(T / kTileRows), ceil(C / kTileColumns)] bool. Does not synchronise.
[[nodiscard]] at::Tensor kept_tiles_aten(const at::Tensor& grad_logits, const at::Tensor& threshold);

// grad_logits with zeros in the tiles that are not kept. Does not synchronise.
[[nodiscard]] at::Tensor cleared_tiles_aten(const at::Tensor& grad_logits, const at::Tensor& kept_tiles);

// A rectangle of the gradient of a chunk's logits.
struct LogitPart {
  std::int64_t first_row;
  std::int64_t num_rows;
  std::int64_t first_column;
  std::int64_t num_columns;
};
// The tiles that are kept, adjacent ones of a row of tiles as one part. kept_tiles is on the CPU, sizes is [T, C].
[[nodiscard]] std::vector<LogitPart> kept_parts(const at::Tensor& kept_tiles, at::IntArrayRef sizes);

}  // namespace d9d::kernels::detail
