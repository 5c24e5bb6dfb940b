// The tokens of an encoded text.
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
  // One for each id if offsets were requested, else empty. The range of a token that is only a part of a character is
  // the whole character; a token that a template added has (0, 0).
  std::vector<TokenOffset> offsets;
};

}  // namespace d9d
