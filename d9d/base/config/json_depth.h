// How deeply values of a JSON text are nested. Very deep values overflow the stack when nlohmann's library copies or
// prints them, so code that reads foreign files checks the depth before it parses.
//
// Example
//   D9D_CHECK(json_depth(text) <= kMaxJsonDepth, IoError, ...);
#pragma once

#include <cstdint>
#include <string_view>

namespace d9d {

inline constexpr std::int64_t kMaxJsonDepth = 64;

// The number of objects and lists that are open at the innermost place; an arbitrary number for text that is not JSON.
[[nodiscard]] std::int64_t json_depth(std::string_view text);

}  // namespace d9d
