// How much memory this process can still get. Local.
//
// Example
//   if (num_bytes > available_memory() / 2) ...
#pragma once

#include <cstdint>
#include <filesystem>

namespace d9d {

// Bytes: what the system has free or can free at once (MemAvailable of /proc/meminfo), or, if that is less, what is
// left of the limit of this process's control group or of a group around it, of versions 1 and 2. The largest number if
// the system tells none of these. `root`: where /proc and the mounts of control groups are found.
[[nodiscard]] std::int64_t available_memory(const std::filesystem::path& root = "/");

}  // namespace d9d
