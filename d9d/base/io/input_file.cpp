#include "d9d/base/io/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "d9d/base/check.h"
#include "d9d/base/io/posix.h"

namespace d9d {

InputFile::InputFile(std::filesystem::path path)
    : path_(std::move(path)), descriptor_(::open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)) {
  const bool is_there = descriptor_ >= 0 || (errno != ENOENT && errno != ENOTDIR);
  D9D_CHECK(is_there, IoError, "[base::io] expected to read '", path_.string(),
            "', which does not exist (No such file). Check the path.");
  if (descriptor_ < 0) detail::throw_system_error("to open", path_);
  struct stat status {};
  const bool is_inspected = ::fstat(descriptor_, &status) == 0;
  size_ = status.st_size;
  if (is_inspected && S_ISREG(status.st_mode)) return;
  const int error = errno;
  ::close(descriptor_);
  errno = error;
  if (!is_inspected) detail::throw_system_error("to inspect", path_);
  throw IoError(
      cat("[base::io] expected '", path_.string(), "' to be a regular file, got something else. Check the path."));
}

InputFile::~InputFile() { ::close(descriptor_); }

void InputFile::read(std::int64_t offset, std::span<std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t count = ::pread(descriptor_, bytes.data(), bytes.size(), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) detail::throw_system_error("to read", path_);
    D9D_CHECK(count > 0, IoError, "[base::io] expected ", bytes.size(), " more bytes at position ", offset, " of '",
              path_.string(), "', got the end of the file. It is damaged; write or download it again.");
    offset += count;
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

std::string text_of_file(const std::filesystem::path& path) {
  const InputFile file(path);
  std::string text(static_cast<std::size_t>(file.size()), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

}  // namespace d9d
