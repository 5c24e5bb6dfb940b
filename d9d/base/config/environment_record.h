// A configuration record in an environment variable, as JSON.
//
// Example
//   D9D_BACKEND_AUTO_SDPA='{"kind": "eager"}' program ...
//   const auto preferred = environment_record<SdpaConfig>("D9D_BACKEND_AUTO_SDPA");
#pragma once

#include <optional>

#include "d9d/base/config/json_text.h"
#include "d9d/base/config/record_json.h"
#include "d9d/base/environment.h"

namespace d9d {

// T: a record, or a std::variant of records. None if the variable is not set. Throws ConfigError, which names the
// variable, if its text is not such a record.
template <class T>
[[nodiscard]] std::optional<T> environment_record(const char* name) {
  const auto text = environment_variable(name);
  if (!text) return std::nullopt;
  return parse_record<T>(parse_json_text(*text, name), {.source = name});
}

}  // namespace d9d
