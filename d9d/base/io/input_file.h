// A file that is read at given positions. Any number of threads may read at the same time.
//
// Example
//   const d9d::InputFile file("model.safetensors");
//   file.read(offset, bytes);
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace d9d {

class InputFile {
 public:
  // Throws IoError unless `path` is a readable regular file.
  explicit InputFile(std::filesystem::path path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  // Fills `bytes` with those from `offset` on. Throws IoError if the file ends before.
  void read(std::int64_t offset, std::span<std::byte> bytes) const;

 private:
  std::filesystem::path path_;
  int descriptor_;
};

}  // namespace d9d
