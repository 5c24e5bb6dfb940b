#include "d9d/base/io/posix.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
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

}  // namespace

void throw_system_error(std::string_view action, const std::filesystem::path& path) {
  const int error = errno;
  throw IoError(cat("[base::io] expected ", action, " '", path.string(), "', got ", system_error_text(error), ". ",
                    remedy(error), "."));
}

std::filesystem::path claim_temporary_name(const std::filesystem::path& path,
                                           const std::function<bool(const std::filesystem::path&)>& create) {
  const std::string prefix = cat(path.string(), ".tmp-", ::getpid(), "-");
  for (int attempt = 0;; ++attempt) {
    std::filesystem::path candidate = prefix + std::to_string(attempt);
    if (create(candidate)) return candidate;
    if (errno != EEXIST) throw_system_error("to create", path);
  }
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
