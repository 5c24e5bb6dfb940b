#include "d9d/base/io/available_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <map>
#include <optional>
#include <sstream>
#include <string>

namespace d9d {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kUnknown = std::numeric_limits<std::int64_t>::max();

// The files of a control group, by version.
struct GroupFiles {
  const char* limit;
  const char* used;
  const char* cache_prefix;  // of the counters of page cache in memory.stat, including child groups
};
constexpr GroupFiles kVersion1 = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_"};
constexpr GroupFiles kVersion2 = {"memory.max", "memory.current", ""};

// The number in a file that holds one; none for "max" and for a missing file.
std::optional<std::int64_t> number_in(const fs::path& path) {
  std::ifstream file(path);
  std::int64_t number = 0;
  if (file >> number) return number;
  return std::nullopt;
}

std::int64_t of_system(const fs::path& root) {
  std::ifstream file(root / "proc/meminfo");
  std::string key, unit;
  std::int64_t kilobytes = 0;
  while (file >> key >> kilobytes) {
    if (key == "MemAvailable:") return kilobytes << 10;
    std::getline(file, unit);
  }
  return kUnknown;
}

// The bytes left of a group's own limit. The kernel's count includes page cache, which it frees under memory pressure.
std::int64_t left_of(const fs::path& group, const GroupFiles& files) {
  const auto limit = number_in(group / files.limit), used = number_in(group / files.used);
  if (!limit || !used) return kUnknown;
  std::ifstream file(group / "memory.stat");
  const std::string prefix = files.cache_prefix;
  std::string key;
  std::int64_t bytes = 0, cached = 0;
  while (file >> key >> bytes) {
    if (key == prefix + "inactive_file" || key == prefix + "active_file") cached += bytes;
  }
  return std::max<std::int64_t>(0, *limit - *used + std::min(cached, *used));
}

// The path of this process's group in the hierarchy of version 1 that counts memory, and in that of version 2.
struct OwnGroups {
  std::optional<fs::path> version_1, version_2;
};

OwnGroups own_groups(const fs::path& root) {
  OwnGroups own;
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {  // 4:memory:/job/step, or 0::/job/step
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    if (controllers.find(",memory,") != std::string::npos) own.version_1 = line.substr(second + 1);
    if (controllers == ",,") own.version_2 = line.substr(second + 1);
  }
  return own;
}

// The smallest number of bytes left of the group at `path` and its enclosing groups. `mounted`: the group that is
// visible at `point`; a container may see its own group as the outermost one.
std::int64_t left_of_all(const fs::path& point, const fs::path& mounted, const fs::path& path,
                         const GroupFiles& files) {
  fs::path below = path.lexically_relative(mounted);
  if (below.empty() || *below.begin() == "..") below = ".";  // another namespace: only the outermost group is visible
  std::int64_t least = left_of(point, files);
  fs::path group = point;
  for (const fs::path& name : below) least = std::min(least, left_of(group /= name, files));
  return least;
}

std::int64_t of_control_groups(const fs::path& root) {
  const OwnGroups own = own_groups(root);
  std::int64_t least = kUnknown;
  std::ifstream file(root / "proc/self/mountinfo");
  for (std::string line;
       std::getline(file, line);) {  // 35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
    std::istringstream words(line);
    std::string number, parent, device, mounted, point, word, kind, source, options;
    words >> number >> parent >> device >> mounted >> point;
    while (words >> word && word != "-") continue;
    words >> kind >> source >> options;
    const fs::path seen = root / fs::path(point).relative_path();
    if (kind == "cgroup" && own.version_1 && ("," + options + ",").find(",memory,") != std::string::npos) {
      least = std::min(least, left_of_all(seen, mounted, *own.version_1, kVersion1));
    } else if (kind == "cgroup2" && own.version_2) {
      least = std::min(least, left_of_all(seen, mounted, *own.version_2, kVersion2));
    }
  }
  return least;
}

}  // namespace

std::int64_t available_memory(const fs::path& root) { return std::min(of_system(root), of_control_groups(root)); }

}  // namespace d9d
