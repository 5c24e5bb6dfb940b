// The loss and the gradients of one step: weighted accumulation over microbatches, one division, norm, clipping.
//
//   backward gets   w_i * L_i                     for each microbatch i
//   the step's loss   sum(w_i * L_i) / W            with W = sum(w_i)
//   the gradient      sum(w_i * dL_i) / W           then scaled by min(1, max_norm / (norm + 1e-6))
//
// Example
//   GradientManager gradients(module, {.max_norm = 1.0});
//   gradients.add_loss_with_weight(loss, weight);      // after each microbatch's loss
//   const StepGradients step = gradients.finish_step();
//   if (step.is_usable) optimizer.step();
//   gradients.reset();
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include "d9d/loop/config/trainer_config.h"
#include "d9d/modules/base/module.h"

namespace d9d {

struct StepGradients {
  double loss = 0.0;
  double norm = 0.0;  // L2, over all parameters, before clipping
  double total_weight = 0.0;
  bool is_usable = true;  // false: total weight 0, or not finite and the policy is to skip
  std::string reason;     // why not
};

class GradientManager {
 public:
  GradientManager(const Module& module, const GradientClippingConfig& config);

  // loss, weight: scalars; detached.
  void add_loss_with_weight(const at::Tensor& loss, const at::Tensor& weight);

  // Divides and clips the gradients of all parameters in place. Waits for the device. Throws StateError, naming the
  // first parameter with such a gradient, if loss or norm is NaN or infinite and the policy is to stop.
  [[nodiscard]] StepGradients finish_step();

  // Forgets gradients and loss.
  void reset();

 private:
  [[nodiscard]] std::vector<at::Tensor> gradients() const;
  [[nodiscard]] std::string first_non_finite() const;

  std::vector<std::pair<std::string, ParameterPtr>> parameters_;
  GradientClippingConfig config_;
  at::Tensor weighted_loss_;  // undefined: nothing yet
  at::Tensor total_weight_;
};

}  // namespace d9d
