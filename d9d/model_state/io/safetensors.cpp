#include "d9d/model_state/io/safetensors.h"

#include <cstdint>

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/base/io/atomic_file.h"

namespace d9d {

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : path_(path.string()),
      mapping_(std::make_shared<MappedFile>(path)),
      header_(parse_safetensors_header(mapping_->bytes(), path_)) {}

at::Tensor SafetensorsFile::tensor(const std::string& name) const {
  const auto found = header_.entries.find(name);
  D9D_CHECK(found != header_.entries.end(), StateError, "[model_state::safetensors] expected tensor '", name, "' in '",
            path_, "', got none of that name. Check the names that the file lists.");
  const SafetensorsEntry& entry = found->second;
  const auto options = at::TensorOptions().dtype(entry.dtype);
  if (entry.size == 0) return at::empty(entry.shape, options);
  std::byte* data = mapping_->bytes().data() + entry.offset;
  if (reinterpret_cast<std::uintptr_t>(data) % c10::elementSize(entry.dtype) != 0) {
    at::Tensor copy = at::empty(entry.shape, options);
    std::memcpy(copy.data_ptr(), data, entry.size);
    return copy;
  }
  return at::from_blob(
      data, entry.shape, [keep_alive = mapping_](void*) {}, options);
}

void write_safetensors(const std::filesystem::path& path, std::vector<TensorSource> tensors,
                       const std::map<std::string, std::string>& metadata) {
  const std::vector<TensorSource> ordered = in_safetensors_order(std::move(tensors));
  AtomicFile file(path);
  file.write(format_safetensors_header(ordered, metadata));
  for (const TensorSource& source : ordered) {
    const at::Tensor tensor = read_checked(source).detach().cpu().resolve_conj().resolve_neg().contiguous();
    file.write({static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()});
  }
  file.commit();
}

}  // namespace d9d
