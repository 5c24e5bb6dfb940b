#include "d9d/base/io/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "d9d/base/check.h"
#include "d9d/base/io/posix.h"

namespace d9d {

AtomicFile::AtomicFile(std::filesystem::path path) : path_(std::move(path)) {
  temporary_ = detail::claim_temporary_name(path_, [this](const std::filesystem::path& candidate) {
    descriptor_ = ::open(candidate.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    return descriptor_ >= 0;
  });
}

AtomicFile::~AtomicFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  write_at(position_, bytes);
  position_ += static_cast<std::int64_t>(bytes.size());
}

void AtomicFile::write_at(std::int64_t position, std::span<const std::byte> bytes) {
  D9D_ASSERT(descriptor_ >= 0, "write after commit to ", path_);
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(descriptor_, bytes.data(), bytes.size(), position);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) detail::throw_system_error("to write", path_);
    position += written;
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void AtomicFile::write(std::string_view text) { write(std::as_bytes(std::span(text))); }

void AtomicFile::commit() {
  D9D_ASSERT(descriptor_ >= 0, "second commit of ", path_);
  if (::fsync(descriptor_) != 0) detail::throw_system_error("to bring to disk", path_);
  const int descriptor = std::exchange(descriptor_, -1);
  if (::close(descriptor) != 0) detail::throw_system_error("to close", path_);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) detail::throw_system_error("to rename into place", path_);
  temporary_.clear();
  detail::sync_directory(path_.parent_path());
}

void write_file_atomically(const std::filesystem::path& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

}  // namespace d9d
