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
#include <string>

namespace d9d {

class InputFile {
 public:
  // Throws IoError unless `path` is a readable regular file.
  explicit InputFile(std::filesystem::path path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  // Fills `bytes` from the file, beginning at `offset`. Throws IoError if the file ends before.
  void read(std::int64_t offset, std::span<std::byte> bytes) const;

  [[nodiscard]] std::int64_t size() const { return size_; }     // bytes, when it was opened
  [[nodiscard]] int descriptor() const { return descriptor_; }  // closed with this object

 private:
  std::filesystem::path path_;
  int descriptor_;
  std::int64_t size_ = 0;
};

// The whole text of a file. Throws as InputFile.
[[nodiscard]] std::string text_of_file(const std::filesystem::path& path);

}  // namespace d9d
