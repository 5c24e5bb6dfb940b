// The bytes of a file, mapped into memory. The system reads pages when they are accessed and drops them when memory is
// short.
//
// Example
//   const auto file = std::make_shared<d9d::MappedFile>("model.safetensors");
//   std::span<std::byte> bytes = file->bytes();
//
// The mapping is private: writing through it changes this process's copy of a page, never the file. The file must keep
// its length while it is mapped (the system ends a program that reads beyond the end of a file that shrank).
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace d9d {

class MappedFile {
 public:
  // Throws IoError unless `path` is a readable regular file.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }

 private:
  std::span<std::byte> bytes_;
};

}  // namespace d9d
