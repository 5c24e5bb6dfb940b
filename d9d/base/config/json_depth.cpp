#include "d9d/base/config/json_depth.h"

#include <algorithm>
#include <cstddef>

namespace d9d {

std::int64_t json_depth(std::string_view text) {
  std::int64_t depth = 0, deepest = 0;
  bool is_in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') is_in_string = !is_in_string;
    if (is_in_string) {
      if (text[i] == '\\') ++i;  // an escaped character does not end the string
    } else if (text[i] == '{' || text[i] == '[') {
      deepest = std::max(deepest, ++depth);
    } else if (text[i] == '}' || text[i] == ']') {
      --depth;
    }
  }
  return deepest;
}

}  // namespace d9d
