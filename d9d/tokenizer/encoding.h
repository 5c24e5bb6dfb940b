// The tokens of a text.
#pragma once

#include <cstdint>
#include <vector>

namespace d9d {

// A range of characters (code points, as Python counts them) of the text that was encoded.
struct TokenOffset {
  std::int64_t begin = 0;
  std::int64_t end = 0;  // exclusive

  friend bool operator==(const TokenOffset&, const TokenOffset&) = default;
};

struct Encoding {
  std::vector<std::uint32_t> ids;
  // One for each id where offsets were asked for, else empty. A token that is a part of a character has the whole
  // character; one that a template added has (0, 0).
  std::vector<TokenOffset> offsets;
};

}  // namespace d9d
