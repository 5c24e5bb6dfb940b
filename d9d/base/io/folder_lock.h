// Says that a folder is in use by one process at a time, also over machines that share a file system with locks.
//
// Example
//   const d9d::FolderLock lock("checkpoints");   // IoError that names process and machine while another one has it
//
// It is the lock of a file .lock in the folder, and ends with this object, or with the process however that ends. On a
// file system without locks it locks nothing.
#pragma once

#include <filesystem>

namespace d9d {

class FolderLock {
 public:
  // The folder must exist and be writable. Throws IoError if another FolderLock has it, of this process too.
  explicit FolderLock(const std::filesystem::path& folder);
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
