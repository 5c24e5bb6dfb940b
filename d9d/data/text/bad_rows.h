// What happens to rows that cannot be read.
#pragma once

#include "d9d/base/enum_names.h"

namespace d9d {

// A row that is no document: a broken line, no such column, no text in it, no UTF-8, a file that is empty or damaged.
enum class BadRows {
  kRefuse,  // IoError that names file and row
  kSkip,    // left out and counted
};
constexpr auto enum_names(BadRows) {
  return std::to_array<EnumName<BadRows>>({{BadRows::kRefuse, "refuse"}, {BadRows::kSkip, "skip"}});
}

}  // namespace d9d
