// Reads single JSON values as C++ values, with the lax coercions of pydantic's default mode: 5.0 and "5" are integers,
// "1e-3" is a number, "yes" is true. Numbers must be finite and integers fit 64 bits. Null is never accepted. Each
// function throws ConfigError.
//
// Example
//   const std::int64_t steps = read_integer(json, path, at_least(1));
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "d9d/base/config/config_path.h"
#include "d9d/base/config/json_text.h"
#include "d9d/base/record.h"

namespace d9d {

[[nodiscard]] bool read_boolean(const Json& json, const ConfigPath& path);
[[nodiscard]] std::int64_t read_integer(const Json& json, const ConfigPath& path, const Range& range = {});
[[nodiscard]] double read_number(const Json& json, const ConfigPath& path, const Range& range = {});
[[nodiscard]] std::string read_string(const Json& json, const ConfigPath& path);

// The index in `names` of the given string.
[[nodiscard]] std::size_t read_name(const Json& json, const ConfigPath& path, std::span<const std::string_view> names);

// The integer that a value represents: 7, 7.0, true, "7", " +7 ", "7.0", "1_000". None for "1e3", 1.5, null.
[[nodiscard]] std::optional<std::int64_t> coerce_integer(const Json& json);

}  // namespace d9d
