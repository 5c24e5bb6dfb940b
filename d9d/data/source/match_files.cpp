#include "d9d/data/source/match_files.h"

#include <glob.h>

#include <map>
#include <set>
#include <string_view>
#include <system_error>

#include "d9d/base/check.h"
#include "d9d/base/io/git_lfs.h"
#include "d9d/data/text/file_form.h"

namespace d9d {

namespace {

struct GlobResult : glob_t {
  explicit GlobResult(const std::string& pattern) : glob_t{} { status = ::glob(pattern.c_str(), 0, nullptr, this); }
  ~GlobResult() { ::globfree(this); }
  GlobResult(const GlobResult&) = delete;
  GlobResult& operator=(const GlobResult&) = delete;
  int status = 0;
};

// Makes a path absolute, and removes "." and ".." unless a link would change their meaning.
std::filesystem::path name_of(const std::filesystem::path& path) {
  const std::filesystem::path name = std::filesystem::absolute(path), normal = name.lexically_normal();
  std::error_code error;
  return std::filesystem::equivalent(normal, name, error) ? normal : name;
}

// Escapes the longest leading part of the pattern that exists literally: a folder or a file may have [ ] in its name.
std::string escaped(const std::string& pattern) {
  std::size_t end = pattern.size();  // end of the longest leading path that exists
  std::error_code error;
  while (end > 0 && !std::filesystem::exists(pattern.substr(0, end), error)) {
    const std::size_t slash = pattern.rfind('/', end - 1);
    end = slash == std::string::npos ? 0 : slash;
  }
  std::string text;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (i < end && std::string_view("*?[]\\").find(pattern[i]) != std::string_view::npos) text += '\\';
    text += pattern[i];
  }
  return text;
}

// Returns the remedy for a pattern that matches no file.
std::string remedy_of(const std::string& pattern) {
  std::error_code error;
  if (std::filesystem::is_directory(pattern, error)) return "It is a folder: name the files in it, such as '*.jsonl'.";
  const bool has_brackets = pattern.find('[') != std::string::npos;
  return cat("Check the path",
             has_brackets ? ": if no such name exists, [ ] are a pattern for one of the characters in them" : "", ".");
}

}  // namespace

std::vector<std::filesystem::path> match_files(const std::vector<std::string>& patterns) {
  std::map<std::filesystem::path, std::filesystem::path> files;  // canonical path of each absolute name
  for (const std::string& pattern : patterns) {
    const GlobResult matches(escaped(pattern));
    D9D_CHECK(matches.status == 0 || matches.status == GLOB_NOMATCH, IoError, "[data::match_files] expected '", pattern,
              "' to be searchable, got glob error ", matches.status, ". Check the permissions of its folders.");
    bool found = false;
    for (std::size_t i = 0; i < matches.gl_pathc; ++i) {
      const std::filesystem::path path(matches.gl_pathv[i]);
      if (!std::filesystem::is_regular_file(path)) continue;
      files.emplace(name_of(path), std::filesystem::canonical(path));
      found = true;
    }
    D9D_CHECK(found, ConfigError, "[data::match_files] expected '", pattern, "' to match a file, got none in '",
              std::filesystem::current_path().string(), "'. ", remedy_of(pattern));
  }
  D9D_CHECK(!files.empty(), ConfigError,
            "[data::match_files] expected at least one path, got an empty list. Name the files to read.");
  std::vector<std::filesystem::path> names;
  std::set<std::filesystem::path> known;
  for (const auto& [name, file] : files) {
    if (known.insert(file).second) names.push_back(name);
  }
  check_no_pointers(names);
  return names;
}

void check_no_pointers(const std::vector<std::filesystem::path>& files) {
  for (const std::filesystem::path& path : files) {
    D9D_CHECK(!is_git_lfs_pointer(first_bytes(path)), IoError, "[data::match_files] '", path.string(),
              "': expected data, ", kGitLfsRemedy);
  }
}

}  // namespace d9d
