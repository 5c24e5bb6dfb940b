// Lion (Chen et al., arXiv:2302.06675): each element moves by the learning rate, along the sign of an average of its
// gradients. It keeps one average, and wants a rate some 3 to 10 times below AdamW's and a weight decay as much above.
//
// Example
//   Lion optimizer({{"weight", weight}}, {.lr = 1e-4, .weight_decay = 1.0});
//   loss.backward();
//   optimizer.step(optimizer.learning_rate());
#pragma once

#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/optim/config.h"
#include "d9d/optim/optimizer_protocol.h"
#include "d9d/optim/parameter_groups.h"

namespace d9d {

// With gradient g, average m and betas b1, b2:
//   p = p - lr (sign(b1 m + (1 - b1) g) + weight_decay p)
//   m = b2 m + (1 - b2) g
// Dtypes, launches and errors are those of Sgd (sgd.h); a NaN gradient makes a parameter NaN. Local.
class Lion {
 public:
  Lion(const std::vector<NamedParameter>& parameters, const LionConfig& config);

  [[nodiscard]] double learning_rate() const { return config_.lr; }
  [[nodiscard]] std::map<std::string, double> rate_factors() const { return rate_factors_; }

  // As in AdamW.
  void step(double learning_rate);
  void step(double learning_rate, const at::Tensor& grad_scale);
  void forget_step() {}  // nothing is counted

  // <name>.exp_avg.
  [[nodiscard]] std::map<std::string, DTensor> state_dict() const;

 private:
  struct Average {
    NamedParameter parameter;
    ParameterOptions options;
    at::Tensor exp_avg;
  };

  LionConfig config_;
  std::vector<Average> averages_;
  std::map<std::string, double> rate_factors_;
};

}  // namespace d9d
