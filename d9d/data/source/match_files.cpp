#include "d9d/data/source/match_files.h"

#include <glob.h>

#include <set>

#include "d9d/base/check.h"

namespace d9d {

namespace {

struct GlobResult : glob_t {
  explicit GlobResult(const std::string& pattern) : glob_t{} { status = ::glob(pattern.c_str(), 0, nullptr, this); }
  ~GlobResult() { ::globfree(this); }
  GlobResult(const GlobResult&) = delete;
  GlobResult& operator=(const GlobResult&) = delete;
  int status = 0;
};

}  // namespace

std::vector<std::filesystem::path> match_files(const std::vector<std::string>& patterns) {
  std::set<std::filesystem::path> files;
  for (const std::string& pattern : patterns) {
    const GlobResult matches(pattern);
    D9D_CHECK(matches.status == 0 || matches.status == GLOB_NOMATCH, IoError, "[data::match_files] expected '", pattern,
              "' to be searchable, got glob error ", matches.status, ". Check the permissions of its folders.");
    bool found = false;
    for (std::size_t i = 0; i < matches.gl_pathc; ++i) {
      const std::filesystem::path path(matches.gl_pathv[i]);
      if (!std::filesystem::is_regular_file(path)) continue;
      files.insert(std::filesystem::canonical(path));
      found = true;
    }
    D9D_CHECK(found, ConfigError, "[data::match_files] expected '", pattern, "' to match a file, got none in '",
              std::filesystem::current_path().string(), "'. Check the path.");
  }
  D9D_CHECK(!files.empty(), ConfigError,
            "[data::match_files] expected at least one path, got an empty list. Name the files to read.");
  return {files.begin(), files.end()};
}

}  // namespace d9d
