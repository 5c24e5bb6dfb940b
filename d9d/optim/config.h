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
  double lr = 1e-3;
  std::pair<double, double> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 1e-2;
  bool amsgrad = false;
  bool maximize = false;

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
  double lr = 1e-3;
  std::pair<double, double> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 1e-2;  // added to the gradient, unless decoupled
  bool amsgrad = false;
  bool maximize = false;
  bool decoupled_weight_decay = false;

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
  double lr = 1e-3;
  double momentum = 0.0;
  double dampening = 0.0;
  double weight_decay = 0.0;
  bool nesterov = false;  // needs momentum > 0 and dampening = 0
  bool maximize = false;

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
  double lr = 1e-3;
  std::pair<double, double> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 1e-2;
  Dtype state_dtype = Dtype::kFloat32;  // of both moments

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
