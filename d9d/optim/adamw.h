// Adam with decoupled weight decay (Loshchilov and Hutter, arXiv:1711.05101), step for step as torch.optim.AdamW.
//
// Example
//   AdamW optimizer({{"weight", weight}}, {.lr = 3e-4, .weight_decay = 0.1});
//   loss.backward();
//   optimizer.step(optimizer.learning_rate());
#pragma once

#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/optim/config.h"
#include "d9d/optim/moments.h"
#include "d9d/optim/optimizer_protocol.h"

namespace d9d {

// Parameters are float, double or half-precision leaves. Moments are fp32 (fp64 for fp64 parameters) whatever the
// parameter's dtype; half-precision parameters are rounded to nearest after each step. On Hopper all parameters of one
// dtype are updated in one launch (kernels/adamw). Local.
class AdamW {
 public:
  // Allocates all state: zeros. Throws ConfigError on values out of range, tensors that are no floating leaves, and
  // names that repeat.
  AdamW(const std::vector<NamedParameter>& parameters, const AdamWConfig& config);

  [[nodiscard]] double learning_rate() const { return config_.lr; }

  // Parameters without a gradient keep their value, moments and step count. Throws ConfigError on a negative learning
  // rate and on sparse gradients.
  void step(double learning_rate);
  // With every gradient times `grad_scale` (0-dim), such as a clip coefficient: saves a pass over the gradients. On the
  // parameters' device it is not waited for. NaN: only the step count changes, until forget_step().
  void step(double learning_rate, const at::Tensor& grad_scale);
  void forget_step() { detail::forget_step(moments_); }

  // <name>.step (0-dim int64, on the CPU), <name>.exp_avg, <name>.exp_avg_sq and, with amsgrad, <name>.max_exp_avg_sq.
  [[nodiscard]] std::map<std::string, at::Tensor> state_dict() const { return detail::state_of(moments_); }
  void load_state_dict(const std::map<std::string, at::Tensor>& state);

 private:
  AdamWConfig config_;
  std::vector<detail::Moments> moments_;
};

}  // namespace d9d
