// The plan of a job as text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tools/plan/job.h"

namespace d9d::plan {

// The largest total of a rank.
[[nodiscard]] std::int64_t most_bytes(const PlannedJob& job);

// A line a rank and a line a stage; with `memory`, what each rank lacks or leaves.
[[nodiscard]] std::string table_text(const PlannedJob& job, std::optional<std::int64_t> memory);

}  // namespace d9d::plan
