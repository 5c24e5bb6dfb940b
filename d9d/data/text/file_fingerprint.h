// Tells whether files are still the same, without reading all of them.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace d9d {

// A line for each file: its absolute path, size, time of last change, and a hash of 4 KiB each at its beginning, middle
// and end. Throws IoError for a file that cannot be read.
[[nodiscard]] std::string file_fingerprint(const std::vector<std::filesystem::path>& files);

// A line for each file: its size, and a hash of 4 KiB each at 16 places, of a small file all. Copies of a file
// elsewhere have the same, whatever their times. Throws IoError for a file that cannot be read.
[[nodiscard]] std::string file_identity(const std::vector<std::filesystem::path>& files);

}  // namespace d9d
