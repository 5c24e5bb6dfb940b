// A folder of this process for parsers that take paths, in memory: a disk would make each input wait. It is removed at
// the end.
//
// Example
//   static const ScratchFolder folder;
//   parse(folder.write("a.idx", bytes));
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/fuzz/targets.h"

namespace d9d::fuzz {

class ScratchFolder {
 public:
  ScratchFolder() {
    const std::filesystem::path memory = "/dev/shm";
    const auto parent = std::filesystem::is_directory(memory) ? memory : std::filesystem::temp_directory_path();
    path_ = parent / ("d9d_fuzz." + std::to_string(::getpid()) + "." + std::to_string(num_folders_++));
    std::filesystem::create_directories(path_);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  // Returns the path.
  std::filesystem::path write(const std::string& name, Bytes bytes) const {
    std::ofstream file(path_ / name, std::ios::binary | std::ios::trunc);
    file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    return path_ / name;
  }

 private:
  static inline int num_folders_ = 0;
  std::filesystem::path path_;
};

}  // namespace d9d::fuzz
