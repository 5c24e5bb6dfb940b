// Files that are complete or absent. Bytes go to a temporary file beside the final one; commit() makes them durable and
// renames it.
//
// Example
//   d9d::AtomicFile file("run/config.json");  // writes run/config.json.tmp-<process>-<attempt>
//   file.write(text);
//   file.commit();                            // run/config.json now holds the whole text, even after a power cut
//
// A writer that is destroyed before commit() removes its temporary file. A killed process leaves at most the temporary
// file, which no reader mistakes for the final one. Every failure throws IoError with the path and the system's reason
// (no space left on device, permission denied, ...). Local, blocking; each object may be used by one thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

namespace d9d {

class AtomicFile {
 public:
  // Creates the temporary file. The folder of `path` must exist.
  explicit AtomicFile(std::filesystem::path path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);
  // Writes at a position, and does not move the position of write(). Gaps that are never written hold zeros.
  void write_at(std::int64_t position, std::span<const std::byte> bytes);

  // fsync, rename over `path` (an existing file is replaced), fsync the folder. Nothing may be written afterwards.
  void commit();

 private:
  std::filesystem::path path_;
  std::filesystem::path temporary_;  // empty once committed
  int descriptor_ = -1;
  std::int64_t position_ = 0;  // of the next write()
};

// Writes the whole file in one call.
void write_file_atomically(const std::filesystem::path& path, std::string_view text);

}  // namespace d9d
