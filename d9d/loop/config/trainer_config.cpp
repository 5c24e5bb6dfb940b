#include "d9d/loop/config/trainer_config.h"

#include "d9d/base/check.h"
#include "d9d/base/config/config_path.h"

namespace d9d {

void RunConfig::validate(const ConfigPath& path) const {
  D9D_CHECK(hparams.is_object(), ConfigError, path / "hparams", "expected an object, got ", hparams.type_name(),
            ". Write it as {\"key\": value}.");
}

void ProfilingConfig::validate(const ConfigPath& path) const {
  D9D_CHECK(warmup_steps <= period_steps && active_steps <= period_steps - warmup_steps, ConfigError, path,
            "expected warmup_steps + active_steps <= period_steps = ", period_steps, ", got ", warmup_steps, " + ",
            active_steps, ". Lengthen the period.");
}

}  // namespace d9d
