// Sizes of memory as text: "80GiB".
//
// Example
//   parse_byte_size("80GiB");          // 85899345920
//   byte_size_text(85899345920);       // "80.00 GiB"
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "d9d/base/record.h"

namespace d9d {

// Returns the bytes of a whole number with the unit KiB, MiB, GiB, TiB, MB or GB, or without one: bytes. Returns none
// for other text, and for more than 2^63 - 1.
[[nodiscard]] std::optional<std::int64_t> parse_byte_size(std::string_view text);

// Returns the size with two decimals in the largest of these units that is not above it: "1.50 GiB", "12 B".
[[nodiscard]] std::string byte_size_text(double size);

// A size of a configuration. In JSON a text as parse_byte_size() takes it, or an integer, in bytes.
struct ByteSize {
  std::int64_t bytes = 0;  // >= 0
  bool operator==(const ByteSize&) const = default;
};

template <>
const ValueType& json_type<ByteSize>();

}  // namespace d9d
