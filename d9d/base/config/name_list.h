// Names in messages: what was meant, what there is.
//
// Example
//   did_you_mean("chekpointing", {"run", "checkpointing"});   // " Did you mean 'checkpointing'?"
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace d9d {

// The known name within a few typing errors of `name`, nearest first; empty when there is none.
[[nodiscard]] std::string_view nearest_name(std::string_view name, std::span<const std::string_view> known);

// A sentence that names the nearest known name, or all of them.
[[nodiscard]] std::string did_you_mean(std::string_view name, std::span<const std::string_view> known);

// "'run', 'schedule'".
[[nodiscard]] std::string quoted_list(std::span<const std::string_view> names);

}  // namespace d9d
