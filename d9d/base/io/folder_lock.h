// Says that a folder or file is in use by one process at a time, also over machines that share a file system with
// locks.
//
// Example
//   const d9d::FolderLock lock("checkpoints");   // IoError that names process and machine while another one has it
//   const d9d::FolderLock file("metrics.jsonl", "metrics.jsonl.lock");
//
// It is the lock of a file, and ends with this object, or with the process however that ends. On a file system without
// locks it locks nothing.
#pragma once

#include <filesystem>

namespace d9d {

class FolderLock {
 public:
  // By the file .lock in the folder, which must exist and be writable. Throws IoError if another FolderLock has it, of
  // this process too.
  explicit FolderLock(const std::filesystem::path& folder) : FolderLock(folder, folder / ".lock") {}
  // `place`: what is locked, and may not be there yet. The folder of `lock_file` must exist and be writable.
  FolderLock(const std::filesystem::path& place, std::filesystem::path lock_file);
  ~FolderLock();  // removes the file
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  // Whether the file that is open is still the one of that name.
  [[nodiscard]] bool is_in_place() const;

  std::filesystem::path path_;
  int descriptor_ = -1;
};

}  // namespace d9d
