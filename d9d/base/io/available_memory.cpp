#include "d9d/base/io/available_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

namespace d9d {
namespace {

constexpr std::int64_t kUnknown = std::numeric_limits<std::int64_t>::max();

// The number in a file that holds one; none for "max" and for a file that is not there.
std::optional<std::int64_t> number_in(const char* path) {
  std::ifstream file(path);
  std::int64_t number = 0;
  if (file >> number) return number;
  return std::nullopt;
}

std::int64_t of_system() {
  std::ifstream file("/proc/meminfo");
  std::string key, unit;
  std::int64_t kilobytes = 0;
  while (file >> key >> kilobytes) {
    if (key == "MemAvailable:") return kilobytes << 10;
    std::getline(file, unit);
  }
  return kUnknown;
}

// Control groups, version 2: what the kernel counts includes page cache, which it gives back under pressure.
std::int64_t of_control_group() {
  const auto limit = number_in("/sys/fs/cgroup/memory.max");
  const auto used = number_in("/sys/fs/cgroup/memory.current");
  if (!limit || !used) return kUnknown;
  std::ifstream file("/sys/fs/cgroup/memory.stat");
  std::string key;
  std::int64_t bytes = 0, cached = 0;
  while (file >> key >> bytes) {
    if (key == "inactive_file" || key == "active_file") cached += bytes;
  }
  return std::max<std::int64_t>(0, *limit - *used + cached);
}

}  // namespace

std::int64_t available_memory() { return std::min(of_system(), of_control_group()); }

}  // namespace d9d
