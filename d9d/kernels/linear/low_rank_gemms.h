// The matrix products of terms of low rank (linear.h), without autograd: scale * (x A^T) B^T.
//
// Legend   T rows, H width of the input, N widths of the outputs, R the sum of the terms' ranks r; of one dtype and
//          device
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace d9d::kernels::detail {

struct LowRankTerms {
  std::vector<at::Tensor> a;  // [r, H]
  std::vector<at::Tensor> b;  // [N, r]
  std::vector<double> scales;
  std::vector<std::int64_t> outputs;  // the output that each is added to

  // Column slices of `whole` [T, R], one for each term.
  [[nodiscard]] std::vector<at::Tensor> columns_of(const at::Tensor& whole) const;
};

// x [T, H] -> [T, R], whose columns are scale * x A^T of each term.
[[nodiscard]] at::Tensor low_rank_hidden(const at::Tensor& x, const LowRankTerms& terms);
// Adds the terms to the outputs [T, N] in place.
void add_low_rank_terms(const at::Tensor& hidden, const LowRankTerms& terms, const std::vector<at::Tensor>& outputs);

// The gradient of x A^T of each term, [T, R]. grads: of the outputs, [T, N]; undefined ones count as zero.
[[nodiscard]] at::Tensor low_rank_hidden_gradient(const std::vector<at::Tensor>& grads, const LowRankTerms& terms);
// Adds what the terms contribute to the gradient of x [T, H], in place.
void add_low_rank_input_gradient(const at::Tensor& of_hidden, const LowRankTerms& terms, const at::Tensor& of_x);

}  // namespace d9d::kernels::detail
