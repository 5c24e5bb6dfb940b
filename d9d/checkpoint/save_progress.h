// Progress of a save that runs beside training.
#pragma once

#include <cstdint>

namespace d9d {

// The progress of one rank, or the sum over the ranks of the job.
struct SaveProgress {
  std::int64_t num_working = 0;  // ranks that still have to do something for the save
  std::int64_t num_failed = 0;   // ranks that could not do it
};

}  // namespace d9d
