// Folders whose names end with a number, such as those of a job's steps.
//
// Example
//   number_of_folder("runs/a/save-200", "save-");        // 200
//   number_of_folder("runs/a/save-200.tmp", "save-");    // none
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

namespace d9d {

// Returns the number, >= 0, after `prefix` in the last part of the path; none for any other name.
[[nodiscard]] std::optional<std::int64_t> number_of_folder(const std::filesystem::path& folder,
                                                           std::string_view prefix);

}  // namespace d9d
