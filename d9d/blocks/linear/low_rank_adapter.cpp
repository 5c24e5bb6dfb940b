#include "d9d/blocks/linear/low_rank_adapter.h"

#include <regex>

#include "d9d/base/check.h"

namespace d9d {

bool is_adapter_parameter(const std::string& name) {
  static const std::regex kExpression(kAdapterParameters);
  return std::regex_match(name, kExpression);
}

void AdapterDropout::set_tensor_parallel_context(TensorParallelContextPtr /*context*/) {
  throw ConfigError(
      "[blocks::linear] expected adapters without dropout under tensor parallelism, where it is not built in this "
      "version, got one with it. Set its dropout to 0, or mesh.tensor_parallel to 1.");
}

}  // namespace d9d
