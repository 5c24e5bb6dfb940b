// A microbatch's contribution to the loss of a step.
#pragma once

#include "d9d/loop/control/task.h"

namespace d9d {

struct WeightedLoss {
  at::Tensor loss;    // scalar, at least fp32
  at::Tensor weight;  // scalar
};

// What a task said, for loss.mul(weight).backward(): the product is of at least fp32. A loss in bfloat16 or half gets
// its gradient, which is the weight, in its own dtype: so its weight is rounded to that, here and where weights are
// added up, and the step's loss remains a mean. Does not wait for the device. StateError for what is no scalar, no
// number or has no graph.
[[nodiscard]] WeightedLoss weighted_loss(const LossResult& result);

}  // namespace d9d
