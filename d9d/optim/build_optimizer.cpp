#include "d9d/optim/build_optimizer.h"

#include <variant>

#include "d9d/base/check.h"
#include "d9d/optim/adamw.h"

namespace d9d {

Optimizer build_optimizer(const OptimizerConfig& config, const std::vector<NamedParameter>& parameters) {
  const auto* adamw = std::get_if<AdamWConfig>(&config);
  D9D_CHECK(adamw != nullptr, ConfigError, "[optim::build_optimizer] expected optimizer.name to be \"adamw\", got \"",
            std::visit([](const auto& record) { return record.kTag.value; }, config),
            "\", which is not built yet. Use \"adamw\", or pass an optimizer of your own.");
  return Optimizer(AdamW(parameters, *adamw));
}

}  // namespace d9d
