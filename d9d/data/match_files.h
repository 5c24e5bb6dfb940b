// Files by name or by shell pattern.
//
// Example
//   const auto files = d9d::match_files({"corpus/*.txt", "corpus/extra.md"});
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace d9d {

// The regular files that match any of the patterns (`*`, `?`, `[a-z]`, as glob(3)), sorted by path, each file once even
// where it is reached by two patterns or a link. Throws ConfigError naming the pattern that matches no file.
[[nodiscard]] std::vector<std::filesystem::path> match_files(const std::vector<std::string>& patterns);

}  // namespace d9d
