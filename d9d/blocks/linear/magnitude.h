// The magnitudes of the rows of a linear with an adapter: y = m / |W + scale * B A| * (W + scale * B A) x (+ b), where
// |.| is the norm of each row, which gets no gradient (Liu et al., DoRA, arXiv:2402.09353).
//
// Example
//   const at::Tensor squares = squares_of_rows(weight, a, b, scale);      // of this rank's columns
//   y = magnitude(product, norms_of_rows(squares, *linear.weight));
#pragma once

#include <optional>

#include "d9d/modules/module.h"

namespace d9d {

// State: weight [out], in at least float32: what it learns is small beside its values. Initially NaN, because the
// weights of the linear come later; begin_magnitudes() (d9d/peft/magnitudes.h) computes it from them.
class Magnitude final : public Module {
 public:
  explicit Magnitude(std::int64_t out_features);
  // product [..., out] of W + scale * B A, norms [out] of its rows -> [..., out], in the dtype of product.
  [[nodiscard]] at::Tensor forward(const at::Tensor& product, const at::Tensor& norms) const;
  // Local. From now on forward gets these rows only, see Linear::compute_only.
  void compute_only(const FlatRange& rows) { rows_ = rows; }

  const ParameterPtr weight;

 private:
  std::optional<FlatRange> rows_;  // none: all
};

// The sums [out] of the squares of each row of W + scale * B A, without storing it: |W|^2 + 2 scale diag(W A^T B^T) +
// scale^2 diag(B A A^T B^T). W [out, in], A [r, in], B [out, r], of one dtype; the sums are in at least float32.
[[nodiscard]] at::Tensor squares_of_rows(const at::Tensor& weight, const at::Tensor& a, const at::Tensor& b,
                                         double scale);

// Their roots. A row of zeros has a norm that is positive, and far below any other: with the magnitude 0 it stays a row
// of zeros, and nothing is NaN.
[[nodiscard]] at::Tensor norms_of_squares(const at::Tensor& squares);

// The same of whole rows. weight: whose local part the squares are of. Collective over the ranks that have other
// columns of it by tensor parallelism.
[[nodiscard]] at::Tensor norms_of_rows(const at::Tensor& squares, const Parameter& weight);

}  // namespace d9d
