#include "d9d/modules/initial_values.h"

#include "d9d/base/check.h"

namespace d9d {

void set_normal_init(Module& module, double std) {
  D9D_CHECK(std >= 0, ConfigError, "[modules::initial_values] expected a standard deviation >= 0, got ", std, ".");
  for (const auto& [name, parameter] : module.named_parameters()) {
    if (parameter->global_shape().size() >= 2) parameter->set_init(init::normal(std));
  }
}

}  // namespace d9d
