// Adam with decoupled weight decay (Loshchilov and Hutter, arXiv:1711.05101); each step equals that of
// torch.optim.AdamW.
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

// Parameters are float, double or half-precision leaves. Moments are fp32 (fp64 for fp64 parameters), whatever the
// parameter's dtype; half-precision parameters are rounded to nearest after each step. On Hopper all parameters of one
// dtype and with the same options are updated by one kernel launch (kernels/adamw). Local.
class AdamW {
 public:
  // Allocates all state as zeros. Throws ConfigError for values out of range, for tensors that are not floating leaves,
  // and for names that repeat.
  AdamW(const std::vector<NamedParameter>& parameters, const AdamWConfig& config);

  [[nodiscard]] double learning_rate() const { return config_.lr; }
  [[nodiscard]] std::map<std::string, double> rate_factors() const { return rate_factors_; }

  // Parameters without a gradient keep their value, moments and step count. Throws ConfigError for a negative learning
  // rate and for sparse gradients.
  void step(double learning_rate);
  // Multiplies every gradient by `grad_scale` (0-dim), such as a clip coefficient, which saves a pass over the
  // gradients. If grad_scale is on the parameters' device, the host does not wait for it. If it is NaN, only the step
  // counts change, until forget_step().
  void step(double learning_rate, const at::Tensor& grad_scale);
  void forget_step() { detail::forget_step(moments_); }

  // <name>.step (0-dim int64, on the CPU), <name>.exp_avg, <name>.exp_avg_sq and, with amsgrad, <name>.max_exp_avg_sq.
  [[nodiscard]] std::map<std::string, DTensor> state_dict() const { return detail::state_of(moments_); }

 private:
  AdamWConfig config_;
  std::vector<detail::Moments> moments_;
  std::map<std::string, double> rate_factors_;
};

}  // namespace d9d
