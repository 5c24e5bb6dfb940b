// What readers and writers of files share: the system's reason in our errors, names for temporaries, durable folders.
#pragma once

#include <filesystem>
#include <functional>
#include <string_view>

namespace d9d::detail {

// Throws IoError: "[base::io] expected <action> '<path>', got <text of errno>. <remedy>".
[[noreturn]] void throw_system_error(std::string_view action, const std::filesystem::path& path);

// Calls create(`<path>.tmp-<process>-<attempt>`) until it returns true and returns that name. create returns false with
// errno set; EEXIST means try the next attempt, anything else is thrown as IoError.
std::filesystem::path claim_temporary_name(const std::filesystem::path& path,
                                           const std::function<bool(const std::filesystem::path&)>& create);

// Makes the entries of a folder durable; an empty path is the current folder.
void sync_directory(const std::filesystem::path& directory);

}  // namespace d9d::detail
