// A microbatch's contribution to the loss of a step.
#pragma once

#include <map>
#include <string>

#include "d9d/loop/step/loss_scales.h"
#include "d9d/loop/task/task.h"

namespace d9d {

struct WeightedLoss {
  at::Tensor loss;                                // scalar, at least fp32
  at::Tensor weight;                              // scalar
  std::map<std::string, at::Tensor> losses = {};  // each unscaled loss of several; empty for a task with one
};

// Converts a task's loss and weight to the dtypes in which loss.mul(weight).backward() computes, at least fp32. The
// gradient of a bfloat16 or half loss is its weight in the dtype of the loss, so the weight is rounded to that dtype,
// in the product and in the sum of weights; the loss of the step thus remains a mean. Does not wait for the device.
// Throws StateError for a loss or weight that is no scalar or has a wrong dtype, and, except under NoGradGuard, for a
// loss without a graph.
//
// scales: those of the microbatch for a task with several losses, otherwise empty.
[[nodiscard]] WeightedLoss weighted_loss(const LossResult& result, const LossScales& scales = {});

}  // namespace d9d
