// How deeply values of a JSON text are nested. Deeper ones overflow the stack where nlohmann's library copies or prints
// them, so whoever reads files from elsewhere looks before it parses.
//
// Example
//   D9D_CHECK(json_depth(text) <= kMaxJsonDepth, IoError, ...);
#pragma once

#include <cstdint>
#include <string_view>

namespace d9d {

inline constexpr std::int64_t kMaxJsonDepth = 64;

// How many objects and lists are open at the innermost place; of what is no JSON, some number.
[[nodiscard]] std::int64_t json_depth(std::string_view text);

}  // namespace d9d
