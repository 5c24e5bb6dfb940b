// Gradient descent, with or without momentum; each step equals that of torch.optim.SGD.
//
// Example
//   Sgd optimizer({{"weight", weight}}, {.lr = 0.1, .momentum = 0.9, .nesterov = true});
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

// Parameters are float, double or half-precision leaves. Momentum is fp32 (fp64 for fp64 parameters); half-precision
// parameters are rounded to nearest after each step. On Hopper all parameters of one dtype and with the same options
// are updated by one kernel launch (kernels/momentum). Local.
class Sgd {
 public:
  // Allocates all state as zeros. Throws ConfigError for values out of range, for tensors that are not floating leaves,
  // and for names that repeat.
  Sgd(const std::vector<NamedParameter>& parameters, const SgdConfig& config);

  [[nodiscard]] double learning_rate() const { return config_.lr; }
  [[nodiscard]] std::map<std::string, double> rate_factors() const { return rate_factors_; }

  // As in AdamW.
  void step(double learning_rate);
  void step(double learning_rate, const at::Tensor& grad_scale);
  void forget_step();

  // Empty without momentum; otherwise <name>.momentum_buffer and <name>.step (0-dim int64, on the CPU), since dampening
  // leaves out the first step.
  [[nodiscard]] std::map<std::string, DTensor> state_dict() const;

 private:
  struct Velocity {
    NamedParameter parameter;
    ParameterOptions options;
    at::Tensor step;    // undefined without momentum
    at::Tensor buffer;  // undefined without momentum
  };

  SgdConfig config_;
  std::vector<Velocity> velocities_;
  std::map<std::string, double> rate_factors_;
};

}  // namespace d9d
