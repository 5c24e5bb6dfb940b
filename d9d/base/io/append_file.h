// A file that grows. Each write is passed to the system whole, so that readers of a live run see no half records.
//
// Example
//   d9d::AppendFile file("run/metrics.jsonl");  // creates run/ and the file, or appends to it
//   file.write("{\"step\": 1}\n");
//   file.close();
// Every failure throws IoError with the path and the system's reason (no space left on device, permission denied, ...).
// Local, blocking; each object may be used by one thread only.
#pragma once

#include <filesystem>
#include <string_view>

namespace d9d {

class AppendFile {
 public:
  explicit AppendFile(std::filesystem::path path);
  // Calls close() and ignores errors.
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  void write(std::string_view bytes);

  // Closes the file. Some file systems report a full disk only here. Idempotent.
  void close();

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;  // -1 once closed
};

}  // namespace d9d
