#include "d9d/lr_scheduler/named_config.h"

#include "d9d/base/check.h"
#include "d9d/base/config/config_path.h"

namespace d9d {

void WarmupConfig::validate(const ConfigPath& path) const {
  D9D_CHECK(steps == 0 || !share, ConfigError, path, "expected warmup_steps or warmup_share, got ", steps, " and ",
            share.value_or(0), ". Leave one of them out.");
}

void WsdScheduleConfig::validate(const ConfigPath& path) const {
  D9D_CHECK(!decay_steps || !decay_share, ConfigError, path, "expected decay_steps or decay_share, got ",
            decay_steps.value_or(0), " and ", decay_share.value_or(0), ". Leave one of them out.");
}

void InverseSqrtScheduleConfig::validate(const ConfigPath& path) const {
  D9D_CHECK(timescale || warmup.steps > 0 || warmup.share.value_or(0) > 0, ConfigError, path,
            "expected timescale or a warm-up, whose steps it is otherwise, got neither. Set warmup_steps, or timescale "
            "to the steps after which the rate has fallen to 0.71.");
}

}  // namespace d9d
