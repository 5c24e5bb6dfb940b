// Factors that combine several losses of a step, each with weights of its own, into one loss.
//
//   the step's loss   sum over losses k of  sum_i(w_ki * L_ki) / W_k        with W_k = sum_i(w_ki), i: the microbatches
//   = the mean over i of  sum over k of  s_ki * L_ki                        with s_ki = N * w_ki / W_k, N: their number
//
// Example
//   const std::vector<LossScales> scales = loss_scales(context, weights);   // before the first forward of the step
//   const WeightedLoss loss = weighted_loss(task.compute_loss(...), scales[i]);
#pragma once

#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/base/record.h"
#include "d9d/core/dist_context/dist_context.h"
#include "d9d/loop/task/task.h"

namespace d9d {

// The factors s_ki of one microbatch i: fp64 scalars on the device. s_ki is 0 for a loss whose total weight is 0.
struct LossScales {
  std::map<std::string, at::Tensor> of = {};  // the factors, by the name of their loss
  // The weight of the microbatch: 1, or 0 if the total weight of every loss is 0, or not finite if a total weight is
  // not. Undefined for a task with one loss.
  at::Tensor weight = {};

  static constexpr auto fields() {
    return record<LossScales>(defaulted("of", &LossScales::of), defaulted("weight", &LossScales::weight));
  }
};

// Returns the fp64 weights with -infinity in place of negative ones. Their sum is then -infinity too, which the host
// detects when it reads the sum.
[[nodiscard]] at::Tensor marked_if_negative(const at::Tensor& weights);

// Collective over the ranks whose losses are added up; local if no loss is named. weights: one entry for each
// microbatch of this rank in the step. Does not wait for the device. Throws StateError if the names differ between
// microbatches or if a weight is no real scalar.
[[nodiscard]] std::vector<LossScales> loss_scales(const DistContext& context, const std::vector<LossWeights>& weights);

}  // namespace d9d
