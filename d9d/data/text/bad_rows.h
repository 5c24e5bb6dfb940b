// What happens to rows that cannot be read.
#pragma once

#include "d9d/base/enum_names.h"

namespace d9d {

// A row is bad if no document can be made from it: a broken line, a null, a column without text, bytes that are not
// UTF-8, damaged rows within a file. A problem of a whole file (it is incomplete, of another format or lacks the
// column) is an error under both policies.
enum class BadRows {
  kRefuse,  // IoError that names file and row
  kSkip,    // left out and counted
};
constexpr auto enum_names(BadRows) {
  return std::to_array<EnumName<BadRows>>({{BadRows::kRefuse, "refuse"}, {BadRows::kSkip, "skip"}});
}

}  // namespace d9d
