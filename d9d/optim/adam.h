// Adam (Kingma and Ba, arXiv:1412.6980), whose weight decay is a part of the gradient unless it is decoupled; each step
// equals that of torch.optim.Adam.
//
// Example
//   Adam optimizer({{"weight", weight}}, {.lr = 3e-4, .weight_decay = 0.0});
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

// Dtypes, state, errors and members are those of AdamW (adamw.h). Local.
class Adam {
 public:
  Adam(const std::vector<NamedParameter>& parameters, const AdamConfig& config);

  [[nodiscard]] double learning_rate() const { return config_.lr; }
  [[nodiscard]] std::map<std::string, double> rate_factors() const { return rate_factors_; }
  void step(double learning_rate);
  void step(double learning_rate, const at::Tensor& grad_scale);
  void forget_step() { detail::forget_step(moments_); }
  [[nodiscard]] std::map<std::string, DTensor> state_dict() const { return detail::state_of(moments_); }

 private:
  AdamConfig config_;
  std::vector<detail::Moments> moments_;
  std::map<std::string, double> rate_factors_;
};

}  // namespace d9d
