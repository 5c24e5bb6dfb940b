#include "d9d/base/environment.h"

#include <cstdlib>

namespace d9d {

std::optional<std::string> environment_variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

}  // namespace d9d
