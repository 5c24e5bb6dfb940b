// A file of the lines that a helper process did not take, for a later process to replay (docs/trackers.md).
//
// Example
//   d9d::Spool spool("tracker_spool/aim-5d2f.jsonl", header);
//   spool.add(R"([3,"loss",{"stage":"train"},2.5])");  // creates the file, with the header, and locks it
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "d9d/base/io/append_file.h"
#include "d9d/base/io/folder_lock.h"

namespace d9d {

class Spool {
 public:
  // Opens nothing yet. `header`: the first line of a new file.
  Spool(std::filesystem::path path, std::string header);

  // Throws IoError if the file cannot be opened or written.
  void add(std::string_view line);
  void close();  // another process may replay the file from now on
  [[nodiscard]] bool is_open() const { return file_ != nullptr; }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  std::string header_;
  std::unique_ptr<FolderLock> lock_;
  std::unique_ptr<AppendFile> file_;  // null: no line yet
};

}  // namespace d9d
