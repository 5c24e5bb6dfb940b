// What the gradient filter of linear_cross_entropy should leave out, from dense logits in fp64.
//
// Example
//   const FilterCase one = peaked_case({300, 500});
//   const DenseFilter dense_filter(one, {.filter_eps = 1e-3});
//   dense_filter.gradients(dense_filter.filtered({1, 256}))     // what is right, if tiles are 1 by 256
//   dense_filter.bound().hidden                                 // how far any filter may be from dense
#pragma once

#include <ATen/ATen.h>

#include "tests/kernels/linear_cross_entropy/linear_cross_entropy_testing.h"
#include "tests/support/compare.h"

namespace d9d::testing {

struct FilterCase {
  at::Tensor hidden;                // [T, H]
  std::vector<at::Tensor> weights;  // [V_s, H]
  at::Tensor targets;               // [T]
  at::Tensor grad_loss;             // [T]
  at::Tensor grad_lse;              // [T]; undefined: none
};

// As late in training: most softmaxes have about half of their mass at their target and half at a row beside it, all in
// the first quarter of the vocabulary. The first eighth of the targets is hardly predicted, but in the first half of
// the vocabulary. Some targets are ignored.
inline FilterCase peaked_case(const std::vector<std::int64_t>& splits, std::int64_t num_targets = 300,
                              std::int64_t hidden_size = 64) {
  FilterCase result{.hidden = values({num_targets, hidden_size}, 1) * 0.15,
                    .grad_loss = values({num_targets}, 2),
                    .grad_lse = values({num_targets}, 3)};
  std::int64_t vocabulary = 0;
  for (const std::int64_t size : splits) {
    const at::Tensor pairs = values({(size + 1) / 2, hidden_size}, 4 + result.weights.size()).repeat_interleave(2, 0);
    result.weights.push_back(pairs.narrow(0, 0, size) + values({size, hidden_size}, 40 + result.weights.size()) * 0.1);
    vocabulary += size;
  }
  std::int64_t first = 0;
  for (const at::Tensor& weight : result.weights) {
    const at::Tensor is_late = (at::arange(weight.size(0)) + first).ge(vocabulary / 2);
    weight.select(1, 0).copy_(at::where(is_late, -3.0, 3.0));
    first += weight.size(0);
  }
  result.hidden.select(1, 0).fill_(1.5);
  result.targets = labels({num_targets}, vocabulary / 4, 20);
  const at::Tensor towards = at::cat(result.weights).index_select(0, result.targets.clamp_min(0));
  const std::int64_t flat = num_targets / 8;
  result.hidden.narrow(0, flat, num_targets - flat).add_(towards.narrow(0, flat, num_targets - flat) * 0.35);
  return result;
}

struct FilterGradients {
  at::Tensor hidden;
  at::Tensor weights;  // of all splits, concatenated
  at::Tensor bias;     // undefined without one
};

// Loss, lse and gradients by `op` in `dtype`; tensors on `device`. The second backward of an output is not needed.
template <class Op>
FilterGradients filter_gradients(const FilterCase& one, kernels::LinearCrossEntropyOptions options, const Op& op,
                                 at::ScalarType dtype = at::kDouble, at::Device device = at::kCPU) {
  const auto moved = [&](const at::Tensor& tensor) { return leaf(tensor.to(device, dtype)); };
  const at::Tensor hidden = moved(one.hidden);
  std::vector<at::Tensor> weights;
  for (const at::Tensor& weight : one.weights) weights.push_back(moved(weight));
  if (options.bias) options.bias = moved(*options.bias);
  const auto output = op(hidden, weights, one.targets.to(device), options);
  const auto grad = [&](const at::Tensor& tensor) {
    // A gradient that is equal for all targets, which gradients in forward need, stays a broadcast number.
    const bool is_broadcast = tensor.numel() > 1 && tensor.stride(0) == 0;
    const at::Tensor there = (is_broadcast ? tensor.narrow(0, 0, 1) : tensor).to(output.loss.options());
    return is_broadcast ? there.expand(tensor.sizes()) : there;
  };
  if (one.grad_lse.defined())
    backward({output.loss, output.lse}, {grad(one.grad_loss), grad(one.grad_lse)});
  else
    backward({output.loss}, {grad(one.grad_loss)});
  std::vector<at::Tensor> weight_grads;
  for (const at::Tensor& weight : weights) weight_grads.push_back(weight.grad());
  return {.hidden = hidden.grad(),
          .weights = at::cat(weight_grads),
          .bias = options.bias ? options.bias->grad() : at::Tensor()};
}

inline void expect_equal(const FilterGradients& actual, const FilterGradients& expected,
                         const test::Tolerance& tolerance) {
  test::expect_close("hidden", actual.hidden.cpu(), expected.hidden, tolerance);
  test::expect_close("weights", actual.weights.cpu(), expected.weights, tolerance);
  if (actual.bias.defined()) test::expect_close("bias", actual.bias.cpu(), expected.bias, tolerance);
}

// Every option beside the filter that changes gradients of logits, for vocabularies of 800.
inline std::vector<kernels::LinearCrossEntropyOptions> filtered_options(double eps) {
  const at::Tensor bias = values({800}, 30);
  return {{.filter_eps = eps},
          {.bias = bias, .filter_eps = eps},
          {.softcap = 30.0, .filter_eps = eps},
          {.z_loss_weight = 0.05, .filter_eps = eps},
          {.bias = bias, .softcap = 35.0, .z_loss_weight = 0.02, .filter_eps = eps}};
}

struct TileSize {
  std::int64_t rows;
  std::int64_t columns;
};

// Of rounded inputs, so that it is exact for kernels in `dtype`.
class DenseFilter {
 public:
  DenseFilter(const FilterCase& one, kernels::LinearCrossEntropyOptions options, at::ScalarType dtype = at::kDouble)
      : hidden_(one.hidden.to(dtype).to(at::kDouble)) {
    for (const at::Tensor& weight : one.weights) {
      weights_.push_back(weight.to(dtype).to(at::kDouble));
      columns_.push_back(weight.size(0));
    }
    if (options.bias) options.bias = options.bias->to(dtype).to(at::kDouble);
    const at::Tensor logits = leaf(at::matmul(hidden_, at::cat(weights_).t()));
    const auto output = dense(logits, at::eye(logits.size(1), at::kDouble), one.targets, options);
    const at::Tensor is_ignored = one.targets.eq(kIgnore);
    at::Tensor by_target = one.grad_loss.masked_fill(is_ignored, 0);
    at::Tensor by_softmax = by_target * (1 + 2 * options.z_loss_weight * output.lse.detach());
    if (one.grad_lse.defined()) {
      by_softmax = by_softmax + one.grad_lse.masked_fill(is_ignored, 0);
      backward({output.loss, output.lse}, {one.grad_loss, one.grad_lse});
    } else {
      backward({output.loss}, {one.grad_loss});
    }
    grad_logits_ = logits.grad();
    threshold_ = at::maximum(by_target.abs(), by_softmax.abs()) * options.filter_eps.value_or(0);
  }

  [[nodiscard]] const at::Tensor& grad_logits() const { return grad_logits_; }  // [T, V]

  // With zeros in each tile whose gradients are all below the threshold. Tiles begin at the first row of each weight.
  [[nodiscard]] at::Tensor filtered(const TileSize& size) const {
    at::Tensor result = grad_logits_.clone();
    std::int64_t first = 0;
    for (const std::int64_t num_columns : columns_) {
      for (std::int64_t column = 0; column < num_columns; column += size.columns) {
        for (std::int64_t row = 0; row < result.size(0); row += size.rows) {
          const std::int64_t num_rows = std::min(size.rows, result.size(0) - row);
          at::Tensor tile =
              result.narrow(0, row, num_rows).narrow(1, first + column, std::min(size.columns, num_columns - column));
          const at::Tensor is_small = tile.abs().lt(threshold_.narrow(0, row, num_rows).unsqueeze(1));
          if (is_small.logical_or(tile.eq(0)).all().item<bool>()) tile.zero_();
        }
      }
      first += num_columns;
    }
    return result;
  }

  // The gradients that products of these gradients of logits have.
  [[nodiscard]] FilterGradients gradients(const at::Tensor& grad_logits) const {
    return {.hidden = at::matmul(grad_logits, at::cat(weights_)),
            .weights = at::matmul(grad_logits.t(), hidden_),
            .bias = grad_logits_.sum(0)};
  }

  // The greatest error of any element that a filter may have, whatever its tiles.
  [[nodiscard]] FilterGradients bound() const {
    const at::Tensor scale = threshold_.unsqueeze(1);
    const at::Tensor left_out = at::where(grad_logits_.abs().lt(scale), scale, 0.0);
    return {.hidden = at::matmul(left_out, at::cat(weights_).abs()),
            .weights = at::matmul(left_out.t(), hidden_.abs()),
            .bias = at::zeros({grad_logits_.size(1)}, at::kDouble)};
  }

 private:
  at::Tensor hidden_;
  std::vector<at::Tensor> weights_;
  std::vector<std::int64_t> columns_;
  at::Tensor grad_logits_;  // before the softcap
  at::Tensor threshold_;
};

// The share of elements that are zero.
inline double share_of_zeros(const at::Tensor& tensor) { return tensor.eq(0).to(at::kDouble).mean().item<double>(); }

// The greatest |actual - expected| / (bound + slack), where slack is `rounding` of the element's magnitude and of a
// thousandth of the tensor's. At most 1 if each element is within its bound.
inline double share_of_bound(const at::Tensor& actual, const at::Tensor& expected, const at::Tensor& bound,
                             double rounding) {
  const at::Tensor a = actual.detach().cpu().to(at::kDouble), b = expected.detach().cpu().to(at::kDouble);
  const at::Tensor slack = (at::maximum(a.abs(), b.abs()) + b.abs().max() * 1e-3) * rounding;
  const double share = ((a - b).abs() / (bound * (1 + rounding) + slack)).max().item<double>();
  return std::isnan(share) ? std::numeric_limits<double>::infinity() : share;
}

}  // namespace d9d::testing
