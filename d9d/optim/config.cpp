#include "d9d/optim/config.h"

#include "d9d/base/check.h"
#include "d9d/base/config/describe.h"
#include "d9d/optim/parameter_groups.h"

namespace d9d {
namespace {

void check_groups(const auto& config, const ConfigPath& path) {
  (void)ParameterGroups(config, /*place=*/cat(path / "groups"));
}

}  // namespace

void AdamWConfig::validate(const ConfigPath& path) const { check_groups(*this, path); }
void AdamConfig::validate(const ConfigPath& path) const { check_groups(*this, path); }
void StochasticAdamWConfig::validate(const ConfigPath& path) const { check_groups(*this, path); }
void LionConfig::validate(const ConfigPath& path) const { check_groups(*this, path); }

void SgdConfig::validate(const ConfigPath& path) const {
  D9D_CHECK(!nesterov || (momentum > 0 && dampening == 0), ConfigError, path,
            "expected momentum > 0 and dampening = 0 with nesterov, got momentum = ", momentum,
            " and dampening = ", dampening, ". Change them, or turn nesterov off.");
  for (const MomentumGroupConfig& each : groups) {
    D9D_CHECK(!each.momentum || momentum > 0, ConfigError, path,
              "expected momentum > 0 with a group that has its own, ", "got momentum = ", momentum, " and ",
              *each.momentum, " in group '", each.group.name, "'. Set momentum, which the other parameters then have.");
  }
  check_groups(*this, path);
}

void MuonConfig::validate(const ConfigPath& path) const {
  D9D_CHECK(ns_coefficients.size() == 3, ConfigError, path / "ns_coefficients",
            "expected 3 coefficients, those of x, x^3 and x^5, got ", ns_coefficients.size(), ". Leave the key out.");
  D9D_CHECK(!products_dtype || *products_dtype == Dtype::kBFloat16 || *products_dtype == Dtype::kFloat32, ConfigError,
            path / "products_dtype", "expected \"bfloat16\", \"float32\" or null, got \"", enum_name(*products_dtype),
            "\". Change it.");
  check_groups(*this, path);
}

template const ValueType& json_type<OptimizerConfig>();

}  // namespace d9d
