// Names in messages: suggests what was meant, and lists what exists.
//
// Example
//   did_you_mean("chekpointing", {"run", "checkpointing"});   // " Did you mean 'checkpointing'?"
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace d9d {

// The known name that differs from `name` by the fewest typing errors, if these are few; else empty.
[[nodiscard]] std::string_view nearest_name(std::string_view name, std::span<const std::string_view> known);

// A sentence that names the nearest known name, or all of them if none is near.
[[nodiscard]] std::string did_you_mean(std::string_view name, std::span<const std::string_view> known);

// "'run', 'schedule'".
[[nodiscard]] std::string quoted_list(std::span<const std::string_view> names);

}  // namespace d9d
