#include "d9d/blocks/positional/rope_scaling_config.h"

#include "d9d/base/check.h"
#include "d9d/base/config/describe.h"

namespace d9d {

void YarnRopeScalingConfig::validate(const ConfigPath& path) const {
  D9D_CHECK(beta_fast > beta_slow, ConfigError, path, "expected beta_fast > beta_slow = ", beta_slow,
            ", got beta_fast = ", beta_fast, ". Usual values are 32 and 1.");
}

void Llama3RopeScalingConfig::validate(const ConfigPath& path) const {
  D9D_CHECK(low_freq_factor < high_freq_factor, ConfigError, path,
            "expected low_freq_factor < high_freq_factor = ", high_freq_factor,
            ", got low_freq_factor = ", low_freq_factor, ". Usual values are 1 and 4.");
}

void check_rope_scaling(const RopeScalingConfig& config, std::int64_t head_dim, const ConfigPath& path) {
  const auto* longrope = std::get_if<LongRopeScalingConfig>(&config);
  if (longrope == nullptr) return;
  const auto expected = static_cast<std::size_t>(head_dim / 2);
  D9D_CHECK(longrope->short_factor.size() == expected && longrope->long_factor.size() == expected, ConfigError, path,
            "expected head_dim / 2 = ", expected, " values in short_factor and in long_factor, got ",
            longrope->short_factor.size(), " and ", longrope->long_factor.size(), ". Give one a frequency.");
}

template const ValueType& json_type<RopeScalingConfig>();

}  // namespace d9d
