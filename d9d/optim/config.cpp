#include "d9d/optim/config.h"

#include "d9d/base/check.h"
#include "d9d/base/config/config_path.h"

namespace d9d {

void SgdConfig::validate(const ConfigPath& path) const {
  D9D_CHECK(!nesterov || (momentum > 0 && dampening == 0), ConfigError, path,
            "expected momentum > 0 and dampening = 0 with nesterov, got momentum = ", momentum,
            " and dampening = ", dampening, ". Change them, or turn nesterov off.");
}

}  // namespace d9d
