#include "d9d/base/io/append_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "d9d/base/check.h"
#include "d9d/base/io/posix.h"

namespace d9d {
namespace {

constexpr int kNewFileMode = 0644;

void create_folder_of(const std::filesystem::path& path) {
  if (!path.has_parent_path()) return;
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  errno = error.value();
  if (error) detail::throw_system_error("to create the folder of", path);
}

}  // namespace

AppendFile::AppendFile(std::filesystem::path path) : path_(std::move(path)) {
  create_folder_of(path_);
  descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, kNewFileMode);
  if (descriptor_ < 0) detail::throw_system_error("to open", path_);
}

AppendFile::~AppendFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void AppendFile::write(std::string_view bytes) {
  D9D_CHECK(descriptor_ >= 0, StateError, "[base::append_file] expected writes to '", path_.string(),
            "' before it is closed, got one after. Close it last.");
  while (!bytes.empty()) {  // one iteration, unless a signal or a nearly full disk cuts the write short
    const auto written = ::write(descriptor_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) detail::throw_system_error("to write", path_);
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  struct stat status {};
  D9D_CHECK(::fstat(descriptor_, &status) != 0 || status.st_nlink > 0, IoError,
            "[base::append_file] expected to write '", path_.string(),
            "', got a file that was removed meanwhile. Leave it there while it is written.");
}

void AppendFile::close() {
  if (descriptor_ >= 0 && ::close(std::exchange(descriptor_, -1)) != 0) detail::throw_system_error("to close", path_);
}

}  // namespace d9d
