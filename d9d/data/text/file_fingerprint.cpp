#include "d9d/data/text/file_fingerprint.h"

#include <system_error>

#include "d9d/base/check.h"

namespace d9d {

std::string file_fingerprint(const std::vector<std::filesystem::path>& files) {
  std::string text;
  for (const std::filesystem::path& path : files) {
    std::error_code error;
    const auto size = std::filesystem::file_size(path, error);
    D9D_CHECK(!error, IoError, "[data::file_fingerprint] expected the file '", path.string(), "', got ",
              error.message(), ". Check the path.");
    const auto changed = std::filesystem::last_write_time(path, error).time_since_epoch().count();
    text += cat(std::filesystem::absolute(path).string(), " ", size, " ", changed, "\n");
  }
  return text;
}

}  // namespace d9d
