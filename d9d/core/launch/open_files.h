// Raises the limit of open files of a process (ulimit -n), which the connections between ranks use up.
#pragma once

#include <cstdint>

namespace d9d {

// Returns the number of open files that a process needs if it is one of `num_ranks` ranks, or supervises them.
[[nodiscard]] std::int64_t open_files_of(std::int64_t num_ranks);

// Raises the limit of this process to its hard limit. Throws ConfigError if the hard limit is less than `needed`.
void raise_open_files(std::int64_t needed);

}  // namespace d9d
