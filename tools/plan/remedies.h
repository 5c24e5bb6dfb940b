// What would lower the memory of a job's ranks: single changes of the job, each planned anew.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/plan/job.h"

namespace d9d::plan {

struct Remedy {
  std::vector<std::string> overrides = {};  // of the job's keys
  std::string note = {};                    // what it costs
  std::int64_t bytes = 0;                   // of the rank that then needs most
};

// Those that help, the one that helps most first. Changes that the job refuses are left out.
[[nodiscard]] std::vector<Remedy> find_remedies(const Job& job, const PlannedJob& planned, const Options& options);

}  // namespace d9d::plan
