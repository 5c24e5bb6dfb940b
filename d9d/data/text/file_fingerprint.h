// Fingerprints that show whether files have changed, without reading whole files.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace d9d {

// Returns a line for each file: its absolute path, size, time of last change, and a hash of up to 16 blocks of 4 KiB,
// spread evenly over the file. Throws IoError for a file that cannot be read.
[[nodiscard]] std::string file_fingerprint(const std::vector<std::filesystem::path>& files);

// Returns size and hash of each file as file_fingerprint() does, but not path and time, so that copies in other places
// have the same fingerprint.
[[nodiscard]] std::string content_fingerprint(const std::vector<std::filesystem::path>& files);

}  // namespace d9d
