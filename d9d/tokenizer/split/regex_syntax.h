// Translates a regular expression of Oniguruma into one over kinds of characters (regex.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace d9d::detail {

struct RegexOverKinds {
  std::string pattern;              // for PCRE2, over bytes
  std::vector<std::uint8_t> kinds;  // of each code point
};

// Throws ConfigError, which begins with `place`, for a construct that is not supported.
[[nodiscard]] RegexOverKinds translate_regex(std::string_view pattern, const std::string& place);

}  // namespace d9d::detail
