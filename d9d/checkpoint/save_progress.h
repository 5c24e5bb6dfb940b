// How far a save beside training is.
#pragma once

#include <cstdint>

namespace d9d {

// Of one rank, or summed over the ranks of the job.
struct SaveProgress {
  std::int64_t num_working = 0;  // ranks that still have to do something for the save
  std::int64_t num_failed = 0;   // ranks that could not do it
};

}  // namespace d9d
