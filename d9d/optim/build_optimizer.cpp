#include "d9d/optim/build_optimizer.h"

#include <variant>

#include "d9d/optim/adam.h"
#include "d9d/optim/adamw.h"
#include "d9d/optim/lion.h"
#include "d9d/optim/muon.h"
#include "d9d/optim/sgd.h"
#include "d9d/optim/stochastic_adamw.h"

namespace d9d {
namespace {

struct Builder {
  const std::vector<NamedParameter>& parameters;
  std::uint64_t seed;

  Optimizer operator()(const AdamWConfig& config) const { return Optimizer(AdamW(parameters, config)); }
  Optimizer operator()(const AdamConfig& config) const { return Optimizer(Adam(parameters, config)); }
  Optimizer operator()(const SgdConfig& config) const { return Optimizer(Sgd(parameters, config)); }
  Optimizer operator()(const StochasticAdamWConfig& config) const {
    return Optimizer(StochasticAdamW(parameters, config, seed));
  }
  Optimizer operator()(const LionConfig& config) const { return Optimizer(Lion(parameters, config)); }
  Optimizer operator()(const MuonConfig& config) const { return Optimizer(Muon(parameters, config)); }
};

}  // namespace

Optimizer build_optimizer(const OptimizerConfig& config, const std::vector<NamedParameter>& parameters,
                          std::uint64_t seed) {
  return std::visit(Builder{.parameters = parameters, .seed = seed}, config);
}

ParameterGroups groups_of(const OptimizerConfig& config) {
  return std::visit([](const auto& record) { return ParameterGroups(record); }, config);
}

}  // namespace d9d
