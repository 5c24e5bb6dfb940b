// The environment variables that this library reads; each is documented where it is used. They are read when an object
// is built, never inside a step.
#pragma once

#include <optional>
#include <string>

namespace d9d {

[[nodiscard]] std::optional<std::string> environment_variable(const char* name);

}  // namespace d9d
