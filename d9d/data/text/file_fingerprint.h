// Tells whether files are still the same, without reading them.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace d9d {

// A line for each file: its absolute path, size and time of last change. Throws IoError for a file that is not there.
[[nodiscard]] std::string file_fingerprint(const std::vector<std::filesystem::path>& files);

}  // namespace d9d
