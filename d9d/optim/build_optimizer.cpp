#include "d9d/optim/build_optimizer.h"

#include <variant>

#include "d9d/base/check.h"
#include "d9d/optim/adamw.h"
#include "d9d/optim/stochastic_adamw.h"

namespace d9d {

Optimizer build_optimizer(const OptimizerConfig& config, const std::vector<NamedParameter>& parameters,
                          std::uint64_t seed) {
  return std::visit(
      [&]<class T>(const T& record) -> Optimizer {
        if constexpr (std::same_as<T, AdamWConfig>) {
          return Optimizer(AdamW(parameters, record));
        } else if constexpr (std::same_as<T, StochasticAdamWConfig>) {
          return Optimizer(StochasticAdamW(parameters, record, seed));
        } else {
          throw ConfigError(
              cat("[optim::build_optimizer] expected optimizer.name to be \"adamw\" or \"stochastic_adamw\", got \"",
                  record.kTag.value, "\", which is not built yet. Use one of them, or pass an optimizer of your own."));
        }
      },
      config);
}

}  // namespace d9d
