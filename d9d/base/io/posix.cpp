#include "d9d/base/io/posix.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <string>
#include <system_error>

#include "d9d/base/check.h"
#include "d9d/base/system_error.h"

namespace d9d::detail {
namespace {

std::string_view remedy(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return "Free space or write elsewhere";
    case EACCES:
    case EPERM:
    case EROFS:
      return "Change its permissions or choose another place";
    case ENOENT:
    case ENOTDIR:
      return "Check the path, and create its folder";
    default:
      return "Check the path and the disk";
  }
}

// The beginning of temporary names of this machine, up to the process id.
std::string temporary_prefix(const std::filesystem::path& path) {
  std::array<char, 65> machine = {};
  if (::gethostname(machine.data(), machine.size() - 1) != 0) machine = {'h', 'o', 's', 't'};
  std::ranges::replace(machine, '/', '_');
  return cat(path.string(), ".tmp-", machine.data(), "-");
}

bool has_ended(pid_t process) { return ::kill(process, 0) != 0 && errno == ESRCH; }

}  // namespace

void throw_system_error(std::string_view action, const std::filesystem::path& path) {
  const int error = errno;
  throw IoError(cat("[base::io] expected ", action, " '", path.string(), "', got ", system_error_text(error), ". ",
                    remedy(error), "."));
}

std::filesystem::path claim_temporary_name(const std::filesystem::path& path,
                                           const std::function<bool(const std::filesystem::path&)>& create) {
  const std::string prefix = cat(temporary_prefix(path), ::getpid(), "-");
  for (int attempt = 0;; ++attempt) {
    std::filesystem::path candidate = prefix + std::to_string(attempt);
    if (create(candidate)) return candidate;
    if (errno != EEXIST) throw_system_error("to create", path);
  }
}

std::vector<std::filesystem::path> abandoned_temporary_names(const std::filesystem::path& path) {
  std::vector<std::filesystem::path> names;
  const std::string prefix = temporary_prefix(path.filename());
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with(prefix)) continue;
    pid_t process = 0;
    const char* const begin = name.data() + prefix.size();
    const auto [end, problem] = std::from_chars(begin, name.data() + name.size(), process);
    if (problem == std::errc() && *end == '-' && process > 0 && has_ended(process)) names.push_back(entry.path());
  }
  std::ranges::sort(names);
  return names;
}

void make_writable_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  errno = error ? error.value() : ENOTDIR;
  const bool is_folder = !error && std::filesystem::is_directory(folder, error);
  if (!is_folder || ::access(folder.c_str(), W_OK | X_OK) != 0) throw_system_error("a folder to write to,", folder);
}

void sync_directory(const std::filesystem::path& directory) {
  const std::filesystem::path opened = directory.empty() ? "." : directory;
  const int descriptor = ::open(opened.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) throw_system_error("to open", opened);
  const int result = ::fsync(descriptor);
  const int error = errno;
  ::close(descriptor);
  errno = error;
  if (result != 0 && error != EINVAL) throw_system_error("to bring to disk", opened);  // EINVAL: cannot sync folders
}

}  // namespace d9d::detail
