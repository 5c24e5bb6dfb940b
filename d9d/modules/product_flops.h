// The FLOPs of matrix products with weights, for Module::training_flops().
#pragma once

#include "d9d/core/dtensor/parameter.h"

namespace d9d {

// FLOPs for one position in forward and backward: of its product with a weight [..., out, in] or [..., in, out], of its
// gradient's, and, if the weight is trained, of the weight's gradient.
[[nodiscard]] inline double product_flops(const Parameter& weight) {
  const std::vector<std::int64_t> shape = weight.global_shape();
  const double elements = static_cast<double>(shape[shape.size() - 2]) * static_cast<double>(shape.back());
  return 2.0 * elements * (weight.requires_grad() ? 3 : 2);
}

}  // namespace d9d
