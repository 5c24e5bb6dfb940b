// An optimiser of one's own: ADOPT (Taniguchi et al., arXiv:2411.02853), which is Adam with steps that are divided by
// the second moment of the gradients before.
#pragma once

#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "d9d/base/config/record_json.h"
#include "d9d/loop/task/providers.h"

// Keys of the job's file.
struct AdoptConfig {
  double lr = 1e-3;
  std::pair<double, double> betas = {0.9, 0.9999};
  double eps = 1e-6;
  static constexpr auto fields() {
    return d9d::record<AdoptConfig>(d9d::required("lr", &AdoptConfig::lr, d9d::at_least(0)),
                                    d9d::defaulted("betas", &AdoptConfig::betas, d9d::half_open(0, 1)),
                                    d9d::defaulted("eps", &AdoptConfig::eps, d9d::greater_than(0)));
  }
};

// Step 0 is v = g^2. With step t > 0, gradient g, moments m and v, and c(x) = x clipped to -t^(1/4) ... t^(1/4):
//   m = b1 m + (1 - b1) c(g / max(sqrt(v), eps))
//   p = p - lr m
//   v = b2 v + (1 - b2) g^2
class Adopt {
 public:
  Adopt(const std::vector<d9d::NamedParameter>& parameters, const AdoptConfig& configuration) : config(configuration) {
    for (const d9d::NamedParameter& parameter : parameters) {
      states.push_back({.parameter = parameter,
                        .step = at::zeros({}, at::kLong),
                        .m = at::zeros_like(parameter.tensor),
                        .v = at::zeros_like(parameter.tensor)});
    }
  }

  double learning_rate() const { return config.lr; }

  // learning_rate: that of the schedule. Each rank updates its part of a parameter, whatever the mesh.
  void step(double learning_rate) {
    const at::NoGradGuard no_grad;
    for (auto& [parameter, step, m, v] : states) {
      const at::Tensor& g = parameter.tensor.grad();
      if (!g.defined()) continue;
      const auto t = step.item<std::int64_t>();
      step.add_(1);
      if (t == 0) {
        v.addcmul_(g, g);
        continue;
      }
      const double limit = std::pow(t, 0.25);
      m.lerp_((g / v.sqrt().clamp_min(config.eps)).clamp(-limit, limit), 1 - config.betas.first);
      parameter.tensor.sub_(m, learning_rate);
      v.lerp_(g.square(), 1 - config.betas.second);
    }
  }

  // What a checkpoint keeps, by the names of parameters, and which layout each tensor has.
  std::map<std::string, d9d::DTensor> state_dict() const {
    std::map<std::string, d9d::DTensor> tensors;
    for (const auto& [parameter, step, m, v] : states) {
      tensors.emplace(parameter.name + ".step", d9d::whole_dtensor(step));  // the same on all ranks
      tensors.emplace(parameter.name + ".m", parameter.laid_out(m));        // as the parameter
      tensors.emplace(parameter.name + ".v", parameter.laid_out(v));
    }
    return tensors;
  }

 private:
  struct State {
    d9d::NamedParameter parameter;
    at::Tensor step, m, v;
  };
  AdoptConfig config;
  std::vector<State> states;
};

struct AdoptProvider : d9d::OptimizerProvider {
  explicit AdoptProvider(const AdoptConfig& configuration) : config(configuration) {}
  d9d::Optimizer build_optimizer(const d9d::DistContext&, const d9d::TrainableParameters& trainable) override {
    return d9d::Optimizer(Adopt(trainable.parameters, config));
  }
  nlohmann::json dump_hparams() const override { return d9d::write_record(config); }
  const AdoptConfig config;
};
