// Progress of a save that runs beside training.
#pragma once

#include <cstdint>

namespace d9d {

// The progress of one rank, or the sum over the ranks of the job.
struct SaveProgress {
  std::int64_t num_working = 0;  // ranks whose work for the save has not ended
  std::int64_t num_failed = 0;   // ranks whose work for the save has failed
};

}  // namespace d9d
