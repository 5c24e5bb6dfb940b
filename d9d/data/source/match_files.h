// Finds files by name or by shell pattern.
//
// Example
//   const auto files = d9d::match_files({"corpus/*.txt", "corpus/extra.md"});
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace d9d {

// The regular files that match any of the patterns (`*`, `?`, `[a-z]`, as glob(3)), as absolute paths in the order
// of their names: links are not followed. A pattern that exists as it is written, or begins with a folder that does, is
// that file or folder, whatever characters it has. Each file occurs once, by its first name, even if two patterns or a
// link lead to it. Throws ConfigError that names a pattern without a match, and IoError for a pointer of Git LFS.
[[nodiscard]] std::vector<std::filesystem::path> match_files(const std::vector<std::string>& patterns);

// Throws IoError for a pointer of Git LFS in the place of a file.
void check_no_pointers(const std::vector<std::filesystem::path>& files);

}  // namespace d9d
