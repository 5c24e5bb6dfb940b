#include "d9d/base/io/atomic_directory.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>

#include "d9d/base/check.h"
#include "d9d/base/io/posix.h"

namespace d9d {
namespace fs = std::filesystem;

namespace {

// The real path of the folder, without links, dots and trailing slashes.
fs::path place_of(const fs::path& path) {
  std::error_code error;
  fs::path place = fs::canonical(path, error);
  if (error) place = path.has_filename() ? path : path.parent_path();
  D9D_CHECK(!fs::is_symlink(fs::symlink_status(place, error)), IoError, "[base::io] expected '", path.string(),
            "' to be absent or a folder, got a link that leads nowhere. Remove it or choose another name.");
  return place;
}

// A mount point cannot be renamed, and no folder can be renamed to its name.
bool is_mount_point(const fs::path& path) {
  struct statx status = {};
  if (::statx(AT_FDCWD, path.c_str(), 0, STATX_BASIC_STATS, &status) != 0) return false;
  return (status.stx_attributes & status.stx_attributes_mask & STATX_ATTR_MOUNT_ROOT) != 0;
}

bool has_entries(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error) && !(fs::is_directory(path, error) && fs::is_empty(path, error));
}

constexpr std::string_view kReplaced = ".replaced";  // suffix for the folder that had the final name

fs::path aside_of(const fs::path& staging) { return cat(staging.string(), kReplaced); }

int open_locked(const fs::path& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor >= 0) (void)::flock(descriptor, LOCK_EX | LOCK_NB);
  return descriptor;
}

// Whether a process holds the folder's lock. A process of another container may have an id that this one does not see.
bool is_locked(const fs::path& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return false;
  const bool is_held = ::flock(descriptor, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  ::close(descriptor);
  return is_held;
}

}  // namespace

void clear_remains(const fs::path& path) {
  const fs::path place = place_of(path);
  std::error_code ignored;
  for (const fs::path& name : detail::abandoned_temporary_names(place)) {
    const bool is_replaced = name.extension() == kReplaced;
    const fs::path staging = is_replaced ? name.parent_path() / name.stem() : name;
    if (is_locked(staging)) continue;
    if (fs::exists(aside_of(staging), ignored) && !fs::exists(fs::symlink_status(place, ignored))) {
      fs::rename(fs::exists(staging, ignored) ? staging : aside_of(staging), place, ignored);
    }
    fs::remove_all(staging, ignored);
    fs::remove_all(aside_of(staging), ignored);
  }
}

AtomicDirectory::AtomicDirectory(const fs::path& path, ExistingDirectory existing)
    : path_(place_of(path)), existing_(existing) {
  clear_remains(path_);
  D9D_CHECK(existing == ExistingDirectory::kReplace || !has_entries(path_), IoError, "[base::io] expected '",
            path_.string(),
            "' to be absent or an empty folder, got something there. Remove it or choose another name.");
  D9D_CHECK(!is_mount_point(path_), IoError, "[base::io] expected '", path_.string(),
            "' to be absent or a folder that can be replaced, got a mount point. Choose a name within it.");
  staging_ = detail::claim_temporary_name(
      path_, [](const fs::path& candidate) { return ::mkdir(candidate.c_str(), 0777) == 0; });
  descriptor_ = open_locked(staging_);
}

AtomicDirectory::~AtomicDirectory() {
  if (descriptor_ >= 0) ::close(descriptor_);
  std::error_code ignored;
  if (!staging_.empty()) fs::remove_all(staging_, ignored);
}

void AtomicDirectory::commit() {
  D9D_ASSERT(!staging_.empty(), "second commit of ", path_);
  detail::sync_directory(staging_);
  const fs::path aside = aside_of(staging_);
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
