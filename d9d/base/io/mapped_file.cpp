#include "d9d/base/io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "d9d/base/check.h"
#include "d9d/base/io/posix.h"

namespace d9d {
namespace {

// Closes the descriptor on every exit; the mapping does not need it.
struct Descriptor {
  int value;
  ~Descriptor() {
    if (value >= 0) ::close(value);
  }
};

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) {
  const Descriptor descriptor{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (descriptor.value < 0) detail::throw_system_error("to open", path);
  struct stat status {};
  if (::fstat(descriptor.value, &status) != 0) detail::throw_system_error("to inspect", path);
  D9D_CHECK(S_ISREG(status.st_mode), IoError, "[base::io] expected '", path.string(),
            "' to be a regular file, got something else. Check the path.");
  if (status.st_size == 0) return;  // an empty range cannot be mapped
  const auto size = static_cast<std::size_t>(status.st_size);
  void* address = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, descriptor.value, 0);
  if (address == MAP_FAILED) detail::throw_system_error("to map", path);
  bytes_ = {static_cast<std::byte*>(address), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
}

}  // namespace d9d
