// Git LFS: a clone without it has a pointer file of some 130 bytes in place of each large file.
//
// Example
//   D9D_CHECK(!is_git_lfs_pointer(file.bytes()), IoError, "'", path, "': ", kGitLfsRemedy);
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace d9d {

[[nodiscard]] inline bool is_git_lfs_pointer(std::string_view text) {
  return text.starts_with("version https://git-lfs.github.com/spec/");
}
[[nodiscard]] inline bool is_git_lfs_pointer(std::span<const std::byte> bytes) {
  return is_git_lfs_pointer(std::string_view{reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

// The text of a message about such a file.
inline constexpr std::string_view kGitLfsRemedy =
    "got a pointer of Git LFS in its place, which a clone without git-lfs leaves. Run \"git lfs pull\" in its folder, "
    "or download the file.";

}  // namespace d9d
