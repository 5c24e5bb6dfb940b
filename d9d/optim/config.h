// The optimiser of a job: one of the records below, selected in JSON by "name". Options have the meaning that they have
// in torch.optim.
//
// Example
//   {"name": "adamw", "lr": 2.5e-4, "betas": [0.9, 0.95]}
//   OptimizerConfig config = SgdConfig{.lr = 0.1, .momentum = 0.9};
//
// Groups give parameters options of their own: the first of them whose expression matches a parameter's whole name
// decides, and "default" has the parameters that none matches.
//   {"name": "adamw", "lr": 2.5e-4, "decay_all": false,
//    "groups": [{"name": "experts", "parameters": ".*\\.experts\\..*", "lr_factor": 0.5}]}
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "d9d/base/dtype.h"
#include "d9d/base/enum_names.h"
#include "d9d/base/record.h"

namespace d9d {

// What a group of parameters has of its own. Keys that are left out are the optimiser's.
struct ParameterGroupConfig {
  std::string name = {};                    // in the log, and of the series lr/<name>
  std::string parameters = {};              // regular expression of whole names of parameters
  double lr_factor = 1.0;                   // the group's learning rate, as a factor of the optimiser's
  std::optional<double> weight_decay = {};  // null: the optimiser's, or none where decay_all says so

  static constexpr auto fields() {
    using Group = ParameterGroupConfig;
    return record<Group>(required("name", &Group::name), required("parameters", &Group::parameters),
                         defaulted("lr_factor", &Group::lr_factor, greater_than(0)),
                         defaulted("weight_decay", &Group::weight_decay, at_least(0)));
  }
};

struct BetasGroupConfig {
  ParameterGroupConfig group = {};
  std::optional<std::pair<double, double>> betas = {};  // null: the optimiser's

  static constexpr auto fields() {
    using Group = BetasGroupConfig;
    return record<Group>(flattened(&Group::group), defaulted("betas", &Group::betas, half_open(0, 1)));
  }
};

struct MomentumGroupConfig {
  ParameterGroupConfig group = {};
  std::optional<double> momentum = {};  // null: the optimiser's

  static constexpr auto fields() {
    using Group = MomentumGroupConfig;
    return record<Group>(flattened(&Group::group), defaulted("momentum", &Group::momentum, greater_than(0)));
  }
};

struct AdamWConfig {
  double lr = 1e-3;                                // learning rate, times the multiplier of lr_scheduler
  std::pair<double, double> betas = {0.9, 0.999};  // decay of the averages of gradients and of their squares
  double eps = 1e-8;                               // added to the root of the second average
  double weight_decay = 1e-2;                      // shrinks parameters by lr times this
  bool amsgrad = false;                            // divide by the largest second average so far
  bool maximize = false;                           // follow the gradient upwards
  std::vector<BetasGroupConfig> groups = {};       // parameters with options of their own
  bool decay_all = true;                           // false: norms, biases, other vectors and embeddings are not decayed

  void validate(const ConfigPath& path) const;

  static constexpr Tag kTag = {"name", "adamw"};
  static constexpr auto fields() {
    using AdamW = AdamWConfig;
    return record<AdamW>(required("lr", &AdamW::lr, at_least(0)), defaulted("betas", &AdamW::betas, half_open(0, 1)),
                         defaulted("eps", &AdamW::eps, at_least(0)),
                         defaulted("weight_decay", &AdamW::weight_decay, at_least(0)),
                         defaulted("amsgrad", &AdamW::amsgrad), defaulted("maximize", &AdamW::maximize),
                         defaulted("groups", &AdamW::groups), defaulted("decay_all", &AdamW::decay_all));
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
  std::vector<BetasGroupConfig> groups = {};       // parameters with options of their own
  bool decay_all = true;                           // false: norms, biases, other vectors and embeddings are not decayed

  void validate(const ConfigPath& path) const;

  static constexpr Tag kTag = {"name", "adam"};
  static constexpr auto fields() {
    using Adam = AdamConfig;
    return record<Adam>(required("lr", &Adam::lr, at_least(0)), defaulted("betas", &Adam::betas, half_open(0, 1)),
                        defaulted("eps", &Adam::eps, at_least(0)),
                        defaulted("weight_decay", &Adam::weight_decay, at_least(0)),
                        defaulted("amsgrad", &Adam::amsgrad), defaulted("maximize", &Adam::maximize),
                        defaulted("decoupled_weight_decay", &Adam::decoupled_weight_decay),
                        defaulted("groups", &Adam::groups), defaulted("decay_all", &Adam::decay_all));
  }
};

struct SgdConfig {
  double lr = 1e-3;                              // learning rate, times the multiplier of lr_scheduler
  double momentum = 0.0;                         // decay of the sum of gradients; 0: none
  double dampening = 0.0;                        // share of a new gradient that is left out of the sum
  double weight_decay = 0.0;                     // added to the gradient, times the parameter
  bool nesterov = false;                         // needs momentum > 0 and dampening = 0
  bool maximize = false;                         // follow the gradient upwards
  std::vector<MomentumGroupConfig> groups = {};  // parameters with options of their own
  bool decay_all = true;                         // false: norms, biases, other vectors and embeddings are not decayed

  void validate(const ConfigPath& path) const;

  static constexpr Tag kTag = {"name", "sgd"};
  static constexpr auto fields() {
    using Sgd = SgdConfig;
    return record<Sgd>(required("lr", &Sgd::lr, at_least(0)), defaulted("momentum", &Sgd::momentum, at_least(0)),
                       defaulted("dampening", &Sgd::dampening),
                       defaulted("weight_decay", &Sgd::weight_decay, at_least(0)),
                       defaulted("nesterov", &Sgd::nesterov), defaulted("maximize", &Sgd::maximize),
                       defaulted("groups", &Sgd::groups), defaulted("decay_all", &Sgd::decay_all));
  }
};

// AdamW whose bf16 parameters are rounded stochastically, so that they need no fp32 copies.
struct StochasticAdamWConfig {
  double lr = 1e-3;                                // learning rate, times the multiplier of lr_scheduler
  std::pair<double, double> betas = {0.9, 0.999};  // decay of the averages of gradients and of their squares
  double eps = 1e-8;                               // added to the root of the second average
  double weight_decay = 1e-2;                      // shrinks parameters by lr times this
  Dtype state_dtype = Dtype::kFloat32;             // of both moments
  std::vector<BetasGroupConfig> groups = {};       // parameters with options of their own
  bool decay_all = true;                           // false: norms, biases, other vectors and embeddings are not decayed

  void validate(const ConfigPath& path) const;

  static constexpr Tag kTag = {"name", "stochastic_adamw"};
  static constexpr auto fields() {
    using AdamW = StochasticAdamWConfig;
    return record<AdamW>(
        required("lr", &AdamW::lr, greater_than(0)), defaulted("betas", &AdamW::betas, half_open(0, 1)),
        defaulted("eps", &AdamW::eps, greater_than(0)), defaulted("weight_decay", &AdamW::weight_decay, at_least(0)),
        required("state_dtype", &AdamW::state_dtype), defaulted("groups", &AdamW::groups),
        defaulted("decay_all", &AdamW::decay_all));
  }
};

// What updates a parameter of Muon.
enum class MuonRule { kMuon, kAdamW };
constexpr auto enum_names(MuonRule) {
  return std::to_array<EnumName<MuonRule>>({{MuonRule::kMuon, "muon"}, {MuonRule::kAdamW, "adamw"}});
}

// The factor of the learning rate of a matrix from `in` to `out` features, as in torch.optim.Muon.
enum class AdjustLr {
  kOriginal,      // sqrt(max(1, out / in))
  kMatchRmsAdamW  // 0.2 sqrt(max(out, in)): steps as large as AdamW's, so that its rates and weight decay serve
};
constexpr auto enum_names(AdjustLr) {
  return std::to_array<EnumName<AdjustLr>>(
      {{AdjustLr::kOriginal, "original"}, {AdjustLr::kMatchRmsAdamW, "match_rms_adamw"}});
}

struct MuonGroupConfig {
  ParameterGroupConfig group = {};
  std::optional<double> momentum = {};                  // null: the optimiser's
  std::optional<std::pair<double, double>> betas = {};  // null: those of the optimiser's adamw
  std::optional<MuonRule> rule = {};                    // null: by the parameter's role in the model

  static constexpr auto fields() {
    using Group = MuonGroupConfig;
    return record<Group>(flattened(&Group::group), defaulted("momentum", &Group::momentum, half_open(0, 1)),
                         defaulted("betas", &Group::betas, half_open(0, 1)), defaulted("rule", &Group::rule));
  }
};

// AdamW of the parameters that Muon leaves to it.
struct MuonAdamWConfig {
  double lr_factor = 1.0;                          // their learning rate, as a factor of the optimiser's
  std::pair<double, double> betas = {0.9, 0.999};  // decay of the averages of gradients and of their squares
  double eps = 1e-8;                               // added to the root of the second average
  double weight_decay = 1e-2;                      // shrinks parameters by their learning rate times this

  static constexpr auto fields() {
    using AdamW = MuonAdamWConfig;
    return record<AdamW>(defaulted("lr_factor", &AdamW::lr_factor, greater_than(0)),
                         defaulted("betas", &AdamW::betas, half_open(0, 1)), defaulted("eps", &AdamW::eps, at_least(0)),
                         defaulted("weight_decay", &AdamW::weight_decay, at_least(0)));
  }
};

// Muon: hidden matrices move along their momentum made orthogonal, and AdamW updates all other parameters.
struct MuonConfig {
  double lr = 1e-3;           // learning rate, times the multiplier of lr_scheduler
  double weight_decay = 0.1;  // shrinks matrices by lr times this
  double momentum = 0.95;     // decay of the average of gradients
  bool nesterov = true;       // directions are a step of the average ahead
  std::vector<double> ns_coefficients = {3.4445, -4.7750, 2.0315};  // of x, x^3 and x^5 in a step of Newton-Schulz
  double eps = 1e-7;                                                // least norm that a matrix is divided by
  std::int64_t ns_steps = 5;                                        // of Newton-Schulz
  AdjustLr adjust_lr_fn = AdjustLr::kOriginal;                      // factor of a matrix's rate, by its sizes
  std::optional<Dtype> products_dtype = {};  // null: bfloat16 on GPUs, float32 on CPUs; of float64 always float64
  std::int64_t bucket_size_mb = 64;          // MiB of matrices a rank that are exchanged together; 0: one parameter
  MuonAdamWConfig adamw = {};                // for what is no hidden matrix
  std::vector<MuonGroupConfig> groups = {};  // parameters with options of their own
  bool decay_all = true;                     // false: norms, biases, other vectors and embeddings are not decayed

  void validate(const ConfigPath& path) const;

  static constexpr Tag kTag = {"name", "muon"};
  static constexpr auto fields() {
    using Muon = MuonConfig;
    return record<Muon>(
        required("lr", &Muon::lr, at_least(0)), defaulted("weight_decay", &Muon::weight_decay, at_least(0)),
        defaulted("momentum", &Muon::momentum, half_open(0, 1)), defaulted("nesterov", &Muon::nesterov),
        defaulted("ns_coefficients", &Muon::ns_coefficients), defaulted("eps", &Muon::eps, greater_than(0)),
        defaulted("ns_steps", &Muon::ns_steps, at_least(0)), defaulted("adjust_lr_fn", &Muon::adjust_lr_fn),
        defaulted("products_dtype", &Muon::products_dtype),
        defaulted("bucket_size_mb", &Muon::bucket_size_mb, at_least(0)), defaulted("adamw", &Muon::adamw),
        defaulted("groups", &Muon::groups), defaulted("decay_all", &Muon::decay_all));
  }
};

// Lion: steps of one size for each element, along the sign of an average of gradients (arXiv:2302.06675).
struct LionConfig {
  double lr = 1e-4;                               // learning rate, times the multiplier of lr_scheduler
  std::pair<double, double> betas = {0.9, 0.99};  // decay of the average in the step, and of the one that is kept
  double weight_decay = 0.0;                      // shrinks parameters by lr times this
  std::vector<BetasGroupConfig> groups = {};      // parameters with options of their own
  bool decay_all = true;                          // false: norms, biases, other vectors and embeddings are not decayed

  void validate(const ConfigPath& path) const;

  static constexpr Tag kTag = {"name", "lion"};
  static constexpr auto fields() {
    using Lion = LionConfig;
    return record<Lion>(required("lr", &Lion::lr, at_least(0)), defaulted("betas", &Lion::betas, half_open(0, 1)),
                        defaulted("weight_decay", &Lion::weight_decay, at_least(0)), defaulted("groups", &Lion::groups),
                        defaulted("decay_all", &Lion::decay_all));
  }
};

using OptimizerConfig = std::variant<AdamWConfig, AdamConfig, SgdConfig, StochasticAdamWConfig, LionConfig, MuonConfig>;

extern template const ValueType& json_type<OptimizerConfig>();

}  // namespace d9d
