// How much memory this process can still get. Local.
//
// Example
//   if (num_bytes > available_memory() / 2) ...
#pragma once

#include <cstdint>
#include <filesystem>

namespace d9d {

// Bytes that the system has free or can free immediately (MemAvailable of /proc/meminfo), or, if that is less, the
// bytes left of the limit of this process's control group (version 1 or 2) or of an enclosing group. The largest number
// if the system reports none of these. `root`: where /proc and the mounts of control groups are found.
[[nodiscard]] std::int64_t available_memory(const std::filesystem::path& root = "/");

}  // namespace d9d
