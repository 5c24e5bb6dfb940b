// Checks that bytes are UTF-8.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace d9d {

// The index of the first byte that is no part of a well-formed sequence (Unicode 15, table 3-7).
[[nodiscard]] std::optional<std::size_t> first_invalid_utf8(std::string_view text);

}  // namespace d9d
