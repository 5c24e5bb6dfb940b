#include "d9d/base/io/atomic_directory.h"

#include <stdio.h>
#include <sys/stat.h>

#include <cerrno>
#include <system_error>

#include "d9d/base/check.h"
#include "d9d/base/io/posix.h"

namespace d9d {
namespace fs = std::filesystem;

namespace {

fs::path without_trailing_slash(fs::path path) { return path.has_filename() ? path : path.parent_path(); }

bool has_entries(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error) && !(fs::is_directory(path, error) && fs::is_empty(path, error));
}

}  // namespace

AtomicDirectory::AtomicDirectory(fs::path path, ExistingDirectory existing)
    : path_(without_trailing_slash(std::move(path))), existing_(existing) {
  D9D_CHECK(existing == ExistingDirectory::kReplace || !has_entries(path_), IoError, "[base::io] expected '",
            path_.string(),
            "' to be absent or an empty folder, got something there. Remove it or choose another name.");
  staging_ = detail::claim_temporary_name(
      path_, [](const fs::path& candidate) { return ::mkdir(candidate.c_str(), 0777) == 0; });
}

AtomicDirectory::~AtomicDirectory() {
  std::error_code ignored;
  if (!staging_.empty()) fs::remove_all(staging_, ignored);
}

void AtomicDirectory::commit() {
  D9D_ASSERT(!staging_.empty(), "second commit of ", path_);
  detail::sync_directory(staging_);
  const fs::path aside = staging_.string() + ".replaced";
  const bool replaces = existing_ == ExistingDirectory::kReplace && has_entries(path_);
  if (replaces && ::rename(path_.c_str(), aside.c_str()) != 0) detail::throw_system_error("to move aside", path_);
  if (::rename(staging_.c_str(), path_.c_str()) != 0) {
    const int error = errno;
    if (replaces) ::rename(aside.c_str(), path_.c_str());
    errno = error;
    detail::throw_system_error("to rename into place", path_);
  }
  staging_.clear();
  detail::sync_directory(path_.parent_path());
  std::error_code ignored;  // the new folder is in place, so leftovers of the old one only occupy disk space
  if (replaces) fs::remove_all(aside, ignored);
}

}  // namespace d9d
