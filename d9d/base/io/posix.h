// Helpers of the file readers and writers: IoErrors with the system's reason, names of temporary files, durable
// folders.
#pragma once

#include <filesystem>
#include <functional>
#include <string_view>
#include <vector>

namespace d9d::detail {

// Throws IoError: "[base::io] expected <action> '<path>', got <text of errno>. <remedy>".
[[noreturn]] void throw_system_error(std::string_view action, const std::filesystem::path& path);

// Calls create(`<path>.tmp-<machine>-<process>-<attempt>`) until it returns true, and returns that name. If create
// returns false it has set errno: EEXIST leads to the next attempt, anything else is thrown as IoError.
std::filesystem::path claim_temporary_name(const std::filesystem::path& path,
                                           const std::function<bool(const std::filesystem::path&)>& create);

// Temporary names of `path`, as claim_temporary_name() gives them, whose process was one of this machine and has ended.
[[nodiscard]] std::vector<std::filesystem::path> abandoned_temporary_names(const std::filesystem::path& path);

// Makes the folder, and those above it. Throws IoError unless this process may write to it.
void make_writable_folder(const std::filesystem::path& folder);

// Makes the entries of a folder durable; an empty path is the current folder.
void sync_directory(const std::filesystem::path& directory);

}  // namespace d9d::detail
