#include "d9d/base/io/mapped_file.h"

#include <sys/mman.h>

#include "d9d/base/io/input_file.h"
#include "d9d/base/io/posix.h"

namespace d9d {

MappedFile::MappedFile(const std::filesystem::path& path) {
  const InputFile file(path);    // the mapping outlives it
  if (file.size() == 0) return;  // an empty range cannot be mapped
  const auto size = static_cast<std::size_t>(file.size());
  void* address = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file.descriptor(), 0);
  if (address == MAP_FAILED) detail::throw_system_error("to map", path);
  bytes_ = {static_cast<std::byte*>(address), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
}

}  // namespace d9d
