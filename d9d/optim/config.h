// The optimiser of a job: one of the records below, selected in JSON by "name". Options have the meaning that they have
// in torch.optim.
//
// Example
//   {"name": "adamw", "lr": 2.5e-4, "betas": [0.9, 0.95]}
//   OptimizerConfig config = SgdConfig{.lr = 0.1, .momentum = 0.9};
#pragma once

#include <utility>
#include <variant>

#include "d9d/base/dtype.h"
#include "d9d/base/record.h"

namespace d9d {

struct AdamWConfig {
  double lr = 1e-3;                                // learning rate, times the multiplier of lr_scheduler
  std::pair<double, double> betas = {0.9, 0.999};  // decay of the averages of gradients and of their squares
  double eps = 1e-8;                               // added to the root of the second average
  double weight_decay = 1e-2;                      // shrinks parameters by lr times this
  bool amsgrad = false;                            // divide by the largest second average so far
  bool maximize = false;                           // follow the gradient upwards

  static constexpr Tag kTag = {"name", "adamw"};
  static constexpr auto fields() {
    using AdamW = AdamWConfig;
    return record<AdamW>(required("lr", &AdamW::lr, at_least(0)), defaulted("betas", &AdamW::betas, half_open(0, 1)),
                         defaulted("eps", &AdamW::eps, at_least(0)),
                         defaulted("weight_decay", &AdamW::weight_decay, at_least(0)),
                         defaulted("amsgrad", &AdamW::amsgrad), defaulted("maximize", &AdamW::maximize));
  }
};

struct AdamConfig {
  double lr = 1e-3;                                // learning rate, times the multiplier of lr_scheduler
  std::pair<double, double> betas = {0.9, 0.999};  // decay of the averages of gradients and of their squares
  double eps = 1e-8;                               // added to the root of the second average
  double weight_decay = 1e-2;                      // added to the gradient, unless decoupled
  bool amsgrad = false;                            // divide by the largest second average so far
  bool maximize = false;                           // follow the gradient upwards
  bool decoupled_weight_decay = false;             // shrinks parameters, as AdamW does

  static constexpr Tag kTag = {"name", "adam"};
  static constexpr auto fields() {
    using Adam = AdamConfig;
    return record<Adam>(required("lr", &Adam::lr, at_least(0)), defaulted("betas", &Adam::betas, half_open(0, 1)),
                        defaulted("eps", &Adam::eps, at_least(0)),
                        defaulted("weight_decay", &Adam::weight_decay, at_least(0)),
                        defaulted("amsgrad", &Adam::amsgrad), defaulted("maximize", &Adam::maximize),
                        defaulted("decoupled_weight_decay", &Adam::decoupled_weight_decay));
  }
};

struct SgdConfig {
  double lr = 1e-3;           // learning rate, times the multiplier of lr_scheduler
  double momentum = 0.0;      // decay of the sum of gradients; 0: none
  double dampening = 0.0;     // share of a new gradient that is left out of the sum
  double weight_decay = 0.0;  // added to the gradient, times the parameter
  bool nesterov = false;      // needs momentum > 0 and dampening = 0
  bool maximize = false;      // follow the gradient upwards

  void validate(const ConfigPath& path) const;

  static constexpr Tag kTag = {"name", "sgd"};
  static constexpr auto fields() {
    using Sgd = SgdConfig;
    return record<Sgd>(required("lr", &Sgd::lr, at_least(0)), defaulted("momentum", &Sgd::momentum, at_least(0)),
                       defaulted("dampening", &Sgd::dampening),
                       defaulted("weight_decay", &Sgd::weight_decay, at_least(0)),
                       defaulted("nesterov", &Sgd::nesterov), defaulted("maximize", &Sgd::maximize));
  }
};

// AdamW whose bf16 parameters are rounded stochastically, so that they need no fp32 copies.
struct StochasticAdamWConfig {
  double lr = 1e-3;                                // learning rate, times the multiplier of lr_scheduler
  std::pair<double, double> betas = {0.9, 0.999};  // decay of the averages of gradients and of their squares
  double eps = 1e-8;                               // added to the root of the second average
  double weight_decay = 1e-2;                      // shrinks parameters by lr times this
  Dtype state_dtype = Dtype::kFloat32;             // of both moments

  static constexpr Tag kTag = {"name", "stochastic_adamw"};
  static constexpr auto fields() {
    using AdamW = StochasticAdamWConfig;
    return record<AdamW>(
        required("lr", &AdamW::lr, greater_than(0)), defaulted("betas", &AdamW::betas, half_open(0, 1)),
        defaulted("eps", &AdamW::eps, greater_than(0)), defaulted("weight_decay", &AdamW::weight_decay, at_least(0)),
        required("state_dtype", &AdamW::state_dtype));
  }
};

using OptimizerConfig = std::variant<AdamWConfig, AdamConfig, SgdConfig, StochasticAdamWConfig>;

extern template const ValueType& json_type<OptimizerConfig>();

}  // namespace d9d
