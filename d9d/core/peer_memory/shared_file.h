// Host memory that ranks of one machine share: each maps the same file of /dev/shm, whose name is removed once all have
// mapped it.
//
// Example
//   const SharedFileResult opened = open_shared_file(*ranks, /*num_bytes=*/64);      // Collective
//   std::atomic_ref(*reinterpret_cast<std::uint32_t*>(opened.file->data())).store(1);    // all ranks see it
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "d9d/core/communicator/communicator.h"

namespace d9d {

class SharedFile {
 public:
  SharedFile(void* memory, std::size_t num_bytes) : memory_(memory), num_bytes_(num_bytes) {}
  ~SharedFile();
  SharedFile(const SharedFile&) = delete;
  SharedFile& operator=(const SharedFile&) = delete;

  [[nodiscard]] std::byte* data() const { return static_cast<std::byte*>(memory_); }
  [[nodiscard]] std::size_t num_bytes() const { return num_bytes_; }

 private:
  void* memory_;
  std::size_t num_bytes_;
};

struct SharedFileResult {
  std::shared_ptr<SharedFile> file;  // zeros at first; null: the ranks cannot share one
  std::string reason;                // why not; the same on all ranks
};

// Collective over ranks of one machine. num_bytes: the same on all ranks, > 0; rounded up to pages.
[[nodiscard]] SharedFileResult open_shared_file(Communicator& ranks, std::int64_t num_bytes);

}  // namespace d9d
