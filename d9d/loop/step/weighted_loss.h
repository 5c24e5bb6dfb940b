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
  std::map<std::string, at::Tensor> losses = {};  // of a task with several losses: each by itself
};

// Converts the loss and weight that a task returned for loss.mul(weight).backward(), whose product is at least fp32.
// The gradient of a bfloat16 or half loss is its weight, in the dtype of the loss. The weight is therefore rounded to
// that dtype, here and where weights are added up, so that the loss of the step remains a mean. Does not wait for the
// device. Throws StateError for a loss or weight that is no scalar or has a wrong dtype, and for a loss without a
// graph.
//
// scales: those of the microbatch for a task with several losses, otherwise empty.
[[nodiscard]] WeightedLoss weighted_loss(const LossResult& result, const LossScales& scales = {});

}  // namespace d9d
