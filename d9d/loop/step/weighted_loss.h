// A microbatch's contribution to the loss of a step.
#pragma once

#include <map>
#include <string>

#include "d9d/loop/step/loss_shares.h"
#include "d9d/loop/task/task.h"

namespace d9d {

struct WeightedLoss {
  at::Tensor loss;                                // scalar, at least fp32
  at::Tensor weight;                              // scalar
  std::map<std::string, at::Tensor> losses = {};  // of several: each one's own
};

// What a task said, for loss.mul(weight).backward(): the product is of at least fp32. A loss in bfloat16 or half gets
// its gradient, which is the weight, in its own dtype: so its weight is rounded to that, here and where weights are
// added up, and the step's loss remains a mean. Does not wait for the device. StateError for what is no scalar, no
// number or has no graph.
//
// shares: of the microbatch, for a task with several losses; otherwise empty.
[[nodiscard]] WeightedLoss weighted_loss(const LossResult& result, const LossShares& shares = {});

}  // namespace d9d
