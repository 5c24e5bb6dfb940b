// Faults of the library that the fuzzer finds and that are still to be mended. An entry goes with its mend; the file
// goes, with its one line in each of three tests, when the list is empty.
#pragma once

#include <optional>
#include <string>

#include "tests/layout/layout_job.h"

namespace d9d::test {

// Which fault the case runs into; none: it must hold.
[[nodiscard]] std::optional<std::string> is_mended_later(const LayoutCase& drawn);

}  // namespace d9d::test
