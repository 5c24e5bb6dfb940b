// What happens to rows that cannot be read.
#pragma once

#include "d9d/base/enum_names.h"

namespace d9d {

// A row that is no document: a broken line, a null, no text in a column, no UTF-8, damaged rows within a file. What
// concerns a whole file (it is not whole, of another format, has no such column) is an error under both.
enum class BadRows {
  kRefuse,  // IoError that names file and row
  kSkip,    // left out and counted
};
constexpr auto enum_names(BadRows) {
  return std::to_array<EnumName<BadRows>>({{BadRows::kRefuse, "refuse"}, {BadRows::kSkip, "skip"}});
}

}  // namespace d9d
