#include "d9d/data/text/file_fingerprint.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <system_error>

#include "d9d/base/check.h"
#include "d9d/base/fnv1a.h"
#include "d9d/base/io/input_file.h"

namespace d9d {

namespace {

// A hash of blocks of 4 KiB at so many places, the file's begin and end among them: edits that keep size and time
// change most often one of them.
std::uint64_t hash_of_samples(const InputFile& file, std::int64_t num_places) {
  constexpr std::int64_t kBlock = 4096;
  std::string block(static_cast<std::size_t>(std::min(kBlock, file.size())), '\0');
  const std::int64_t last = file.size() - std::ssize(block);
  std::uint64_t hash = fnv1a("");
  for (std::int64_t place = 0; place < num_places; ++place) {
    file.read(last * place / (num_places - 1), std::as_writable_bytes(std::span(block)));
    hash = fnv1a(block, hash);
  }
  return hash;
}

}  // namespace

std::string file_fingerprint(const std::vector<std::filesystem::path>& files) {
  std::string text;
  for (const std::filesystem::path& path : files) {
    std::error_code error;
    const auto size = std::filesystem::file_size(path, error);
    D9D_CHECK(!error, IoError, "[data::file_fingerprint] expected the file '", path.string(), "', got ",
              error.message(), ". Check the path.");
    const auto changed = std::filesystem::last_write_time(path, error).time_since_epoch().count();
    text += cat(std::filesystem::absolute(path).string(), " ", size, " ", changed, " ",
                hash_of_samples(InputFile(path), 3), "\n");
  }
  return text;
}

std::string file_identity(const std::vector<std::filesystem::path>& files) {
  constexpr std::int64_t kNumPlaces = 16;
  std::string text;
  for (const std::filesystem::path& path : files) {
    const InputFile file(path);
    text += cat(file.size(), " ", hash_of_samples(file, kNumPlaces), "\n");
  }
  return text;
}

}  // namespace d9d
