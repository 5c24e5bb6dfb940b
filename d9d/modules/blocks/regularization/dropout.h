// Zeroes elements with a probability and scales the rest up, in training only.
//
// The mask is a function of (base seed, this module's name, step, microbatch, element): the same in a recomputation, on
// every device and in every repetition of the run.
#pragma once

#include "d9d/modules/base/module.h"

namespace d9d {

class Dropout : public Module {
 public:
  explicit Dropout(double probability);  // in [0, 1)
  // x [B, ...] -> the same shape.
  [[nodiscard]] at::Tensor forward(const at::Tensor& x) const;

  const double probability;
};

}  // namespace d9d
