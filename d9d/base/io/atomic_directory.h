// A folder that appears completely or not at all: fill its staging folder, then commit() renames it.
//
// Example
//   d9d::AtomicDirectory directory("export");      // creates export.tmp-<machine>-<process>-<attempt>
//   d9d::write_file_atomically(directory.staging() / "config.json", text);
//   directory.commit();                            // export/ now holds config.json
//
// If it is destroyed before commit(), it removes the staging folder. Remains of a killed process are removed by the
// next one on the same machine (clear_remains). Throws IoError with the path and the reason. Local, blocking; each
// object may be used by one thread only.
#pragma once

#include <filesystem>

namespace d9d {

// What to do with an existing folder of the final name that has entries. An empty one is always replaced.
enum class ExistingDirectory {
  kRefuse,   // IoError, at construction
  kReplace,  // moved aside, deleted after the rename; after a kill in between clear_remains() ends the commit
};

// Removes the staging folders that killed processes of this machine left for `path`. If a process was killed while it
// replaced the folder, its new folder is put in place.
void clear_remains(const std::filesystem::path& path);

class AtomicDirectory {
 public:
  // Calls clear_remains() first. The parent folder of `path` must exist. A link to a folder means that folder. Throws
  // IoError as ExistingDirectory says, and if `path` is something that commit() could not replace: a file, a dangling
  // link, a mount point.
  explicit AtomicDirectory(const std::filesystem::path& path, ExistingDirectory existing = ExistingDirectory::kRefuse);
  ~AtomicDirectory();
  AtomicDirectory(const AtomicDirectory&) = delete;
  AtomicDirectory& operator=(const AtomicDirectory&) = delete;

  // Where to write until commit().
  [[nodiscard]] const std::filesystem::path& staging() const { return staging_; }

  // Makes the entries durable and renames the folder. The files themselves must have been synced (AtomicFile does so).
  void commit();

 private:
  std::filesystem::path path_;
  std::filesystem::path staging_;  // empty once committed
  int descriptor_ = -1;            // of staging_, which is locked until this object is destroyed
  ExistingDirectory existing_;
};

}  // namespace d9d
