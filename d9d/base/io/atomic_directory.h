// A folder that appears whole or not at all: fill its staging folder, then commit() renames it.
//
// Example
//   d9d::AtomicDirectory directory("export");      // creates export.tmp-<process>-<attempt>
//   d9d::write_file_atomically(directory.staging() / "config.json", text);
//   directory.commit();                            // export/ now holds config.json
//
// Destroyed before commit(), it removes the staging folder; a killed process leaves at most that. Throws IoError with
// the path and the reason. Local, blocking; one thread an object.
#pragma once

#include <filesystem>

namespace d9d {

// What to do with a folder of the final name that has entries. An empty one is always replaced.
enum class ExistingDirectory {
  kRefuse,   // IoError, at construction
  kReplace,  // moved aside, deleted once the new one has its name; a kill in between leaves both under temporary names
};

class AtomicDirectory {
 public:
  // The folder above `path` must exist.
  explicit AtomicDirectory(std::filesystem::path path, ExistingDirectory existing = ExistingDirectory::kRefuse);
  ~AtomicDirectory();
  AtomicDirectory(const AtomicDirectory&) = delete;
  AtomicDirectory& operator=(const AtomicDirectory&) = delete;

  // Where to write until commit().
  [[nodiscard]] const std::filesystem::path& staging() const { return staging_; }

  // Makes the entries durable and renames. The files themselves must have been synced (AtomicFile does).
  void commit();

 private:
  std::filesystem::path path_;
  std::filesystem::path staging_;  // empty once committed
  ExistingDirectory existing_;
};

}  // namespace d9d
