// Finds files by name or by shell pattern.
//
// Example
//   const auto files = d9d::match_files({"corpus/*.txt", "corpus/extra.md"});
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace d9d {

// Returns the regular files that match any of the patterns (`*`, `?`, `[a-z]`, as glob(3)), as absolute paths in
// alphabetical order, in which links are not resolved. If a path exists whose name is the whole pattern, or the pattern
// up to a slash, the pattern characters in that name are taken literally. Each file occurs once, under its first name,
// even if two patterns or a link lead to it. Throws ConfigError that names a pattern without a match, and IoError for a
// Git LFS pointer.
[[nodiscard]] std::vector<std::filesystem::path> match_files(const std::vector<std::string>& patterns);

// Throws IoError if one of the files is only a Git LFS pointer.
void check_no_pointers(const std::vector<std::filesystem::path>& files);

}  // namespace d9d
