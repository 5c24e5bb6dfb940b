// Targets for linear_cross_entropy and the same loss from dense logits.
#pragma once

#include <ATen/ATen.h>

#include "d9d/kernels/linear_cross_entropy/linear_cross_entropy.h"

#include "tests/kernels/op_testing.h"

namespace d9d::testing {

inline constexpr std::int64_t kIgnore = -100;

inline at::Tensor labels(at::IntArrayRef shape, std::int64_t vocabulary, std::uint64_t seed) {
  const at::Tensor spread = values(shape, seed).mul_(1e6).to(at::kLong).remainder(vocabulary);
  return at::where(values(shape, seed + 1).gt(1), kIgnore, spread);  // about a sixth ignored
}

using LinearCrossEntropyOp = kernels::LinearCrossEntropyOutput (*)(const at::Tensor&, at::TensorList, const at::Tensor&,
                                                                   const kernels::LinearCrossEntropyOptions&);

// `op` of the same logits, to which the last third of hidden's features comes as a term of low rank.
inline kernels::LinearCrossEntropyOutput low_rank_form(LinearCrossEntropyOp op, const at::Tensor& hidden,
                                                       at::TensorList weight, const at::Tensor& targets,
                                                       const kernels::LinearCrossEntropyOptions& options) {
  const std::int64_t rank = hidden.size(-1) / 3, size = hidden.size(-1) - rank;
  std::vector<at::Tensor> wide;
  kernels::LowRankLogits term{.hidden = hidden.narrow(-1, size, rank), .weights = {}};
  for (const at::Tensor& split : weight) {
    wide.push_back(split.narrow(1, 0, size));
    term.weights.push_back(split.narrow(1, size, rank));
  }
  kernels::LinearCrossEntropyOptions own = options;
  own.low_rank = term;
  return op(hidden.narrow(-1, 0, size), wide, targets, own);
}
inline kernels::LinearCrossEntropyOutput with_low_rank(const at::Tensor& hidden, at::TensorList weight,
                                                       const at::Tensor& targets,
                                                       const kernels::LinearCrossEntropyOptions& options) {
  return low_rank_form(kernels::linear_cross_entropy, hidden, weight, targets, options);
}

// The same from dense logits, for targets without shift.
inline kernels::LinearCrossEntropyOutput dense(const at::Tensor& hidden, at::TensorList weight,
                                               const at::Tensor& targets,
                                               const kernels::LinearCrossEntropyOptions& options) {
  const at::ScalarType wide = hidden.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor logits = at::matmul(hidden.to(wide), at::cat(weight).to(wide).t());
  if (options.bias) logits = logits + *options.bias;
  if (options.softcap) logits = (logits / *options.softcap).tanh() * *options.softcap;
  const at::Tensor is_ignored = targets.eq(options.ignore_index);
  const at::Tensor lse = at::logsumexp(logits, -1).masked_fill(is_ignored, 0);
  const at::Tensor target = logits.gather(-1, targets.masked_fill(is_ignored, 0).unsqueeze(-1)).squeeze(-1);
  at::Tensor loss = (lse - target + options.z_loss_weight * lse.square()).masked_fill(is_ignored, 0);
  if (options.reduction == kernels::Reduction::kSum) loss = loss.sum();
  if (options.reduction == kernels::Reduction::kMean) loss = loss.sum() / is_ignored.logical_not().sum().clamp_min(1);
  return {.loss = loss, .lse = lse};
}

// How far `op`, which is called as linear_cross_entropy, is from dense: of outputs and of all gradients, with gradients
// of both the loss and lse. Inputs: a record of hidden, weights and targets.
template <class Inputs, class Op>
double error_against_dense(const Inputs& inputs, const kernels::LinearCrossEntropyOptions& options, const Op& op) {
  std::vector<at::Tensor> tensors = {inputs.hidden};
  tensors.insert(tensors.end(), inputs.weights.begin(), inputs.weights.end());
  if (options.bias) tensors.push_back(*options.bias);
  const auto with = [&](auto function) {
    return [&, function](const std::vector<at::Tensor>& in) {
      kernels::LinearCrossEntropyOptions own = options;
      if (options.bias) own.bias = in.back();
      const std::vector<at::Tensor> weights(in.begin() + 1, in.begin() + 1 + inputs.weights.size());
      const kernels::LinearCrossEntropyOutput output = function(in[0], weights, inputs.targets, own);
      return std::vector{output.loss, output.lse};
    };
  };
  return worst_difference(with(op), with(dense), tensors);
}

}  // namespace d9d::testing
