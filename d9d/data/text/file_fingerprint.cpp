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

// Returns a hash of up to 16 blocks, spread evenly over the file. An edit that keeps the size and the time of the file
// usually changes one of these blocks.
std::uint64_t hash_of_samples(const std::filesystem::path& path) {
  constexpr std::int64_t kFingerprintBlock = 4096, kMostBlocks = 16;
  const InputFile file(path);
  std::string block(static_cast<std::size_t>(std::min(kFingerprintBlock, file.size())), '\0');
  const std::int64_t last = file.size() - std::ssize(block);
  const std::int64_t num_blocks =
      std::clamp<std::int64_t>((file.size() + kFingerprintBlock - 1) / kFingerprintBlock, 1, kMostBlocks);
  std::uint64_t hash = fnv1a("");
  for (std::int64_t i = 0; i < num_blocks; ++i) {
    file.read(last * i / std::max<std::int64_t>(num_blocks - 1, 1), std::as_writable_bytes(std::span(block)));
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
    text += cat(std::filesystem::absolute(path).string(), " ", size, " ", changed, " ", hash_of_samples(path), "\n");
  }
  return text;
}

std::string content_fingerprint(const std::vector<std::filesystem::path>& files) {
  std::string text;
  for (const std::filesystem::path& path : files) {
    text += cat(std::filesystem::file_size(path), " ", hash_of_samples(path), "\n");
  }
  return text;
}

}  // namespace d9d
