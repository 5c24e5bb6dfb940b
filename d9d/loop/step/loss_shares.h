// The factors by which several losses of a step, each a mean over something else, add up to one loss.
//
//   the step's loss   sum over losses k of  sum_i(w_ki * L_ki) / W_k        with W_k = sum_i(w_ki), i: the microbatches
//   = the mean over i of  sum over k of  s_ki * L_ki                        with s_ki = N * w_ki / W_k, N: their number
//
// Example
//   const std::vector<LossShares> shares = loss_shares(context, weights);   // before the first forward of the step
//   const WeightedLoss loss = weighted_loss(task.compute_loss(...), shares[i]);
#pragma once

#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/base/record.h"
#include "d9d/core/dist_context/dist_context.h"
#include "d9d/loop/task/task.h"

namespace d9d {

// Of one microbatch. Scalars of fp64 on the device; s_ki is 0 for a loss whose total weight is 0.
struct LossShares {
  std::map<std::string, at::Tensor> of = {};  // by the names of the losses
  // 1; 0 if the total weight of every loss is 0; NaN or -infinity if a total weight is. Undefined: one loss.
  at::Tensor weight = {};

  static constexpr auto fields() {
    return record<LossShares>(defaulted("of", &LossShares::of), defaulted("weight", &LossShares::weight));
  }
};

// Weights, fp64, with -infinity for each that is negative: so is their sum then, which the host sees when it reads
// that.
[[nodiscard]] at::Tensor marked_if_negative(const at::Tensor& weights);

// Collective over the ranks whose losses are added up, unless no weights are named. `weights`: of this rank's
// microbatches of a step. Does not wait for the device. StateError for names that differ between microbatches and for
// weights that are no scalars.
[[nodiscard]] std::vector<LossShares> loss_shares(const DistContext& context, const std::vector<LossWeights>& weights);

}  // namespace d9d
