// How much memory this process can still get. Local.
//
// Example
//   if (num_bytes > available_memory() / 2) ...
#pragma once

#include <cstdint>

namespace d9d {

// Bytes: what the system has free or can free at once (MemAvailable of /proc/meminfo), or, if that is less, what is
// left of the limit of this process's control group. The largest number if the system tells neither.
[[nodiscard]] std::int64_t available_memory();

}  // namespace d9d
