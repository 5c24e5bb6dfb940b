// A lock for a folder or file that one process at a time may use, also over machines that share a file system with
// locks.
//
// Example
//   const d9d::FolderLock lock("checkpoints");   // IoError that names process and machine while another one has it
//   const d9d::FolderLock file("metrics.jsonl", "metrics.jsonl.lock");
//
// It locks a file. The lock ends with this object, or with the process, however that ends. On a file system without
// locks it has no effect.
#pragma once

#include <filesystem>

namespace d9d {

class FolderLock {
 public:
  // Locks the file .lock in the folder, which must exist and be writable. Throws IoError if another FolderLock holds
  // it, also one of this process.
  explicit FolderLock(const std::filesystem::path& folder) : FolderLock(folder, folder / ".lock") {}
  // `place`: the locked folder or file, which need not exist yet. The folder of `lock_file` must exist and be writable.
  FolderLock(const std::filesystem::path& place, std::filesystem::path lock_file);
  ~FolderLock();  // removes the file
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  // Whether the open file is still the one that has this name.
  [[nodiscard]] bool is_in_place() const;

  std::filesystem::path path_;
  int descriptor_ = -1;
};

}  // namespace d9d
