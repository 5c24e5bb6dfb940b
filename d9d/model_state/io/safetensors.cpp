#include "d9d/model_state/io/safetensors.h"

#include <cstdint>

#include <ATen/ATen.h>

#include "d9d/base/check.h"

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
  D9D_CHECK(entry.unknown_dtype.empty(), IoError, "[model_state::safetensors] expected a dtype of tensor '", name,
            "' in '", path_, "' that is built, got ", entry.unknown_dtype,
            ". Convert the tensor, or take a checkpoint in a float type.");
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

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, const std::vector<TensorSource>& tensors,
                                     const std::map<std::string, std::string>& metadata)
    : file_(path) {
  const std::vector<TensorSource> ordered = in_safetensors_order(tensors);
  const std::string header = format_safetensors_header(ordered, metadata);
  file_.write(header);
  auto position = static_cast<std::int64_t>(header.size());
  for (const TensorSource& tensor : ordered) {
    places_.emplace(tensor.name, Place{.described = tensor, .position = position});
    position += num_bytes(tensor);
  }
}

void SafetensorsWriter::write(const std::string& name, const at::Tensor& tensor) {
  const auto found = places_.find(name);
  D9D_CHECK(found != places_.end(), StateError, "[model_state::safetensors] expected a tensor that the file's header ",
            "has, got '", name, "'. Describe it when the writer is made.");
  Place& place = found->second;
  place.described.read = [&] { return tensor; };
  const at::Tensor bytes = read_checked(place.described).detach().cpu().resolve_conj().resolve_neg().contiguous();
  place.described.read = nullptr;
  file_.write_at(place.position, {static_cast<const std::byte*>(bytes.const_data_ptr()), bytes.nbytes()});
  place.is_written = true;
}

void SafetensorsWriter::commit() {
  std::string missing;
  for (const auto& [name, place] : places_) {
    if (!place.is_written) missing += cat(missing.empty() ? "'" : ", '", name, "'");
  }
  D9D_CHECK(missing.empty(), StateError,
            "[model_state::safetensors] expected all tensors of the header to be written, ", "got none of ", missing,
            ". Write them, or leave them out of the header.");
  file_.commit();
}

void write_safetensors(const std::filesystem::path& path, const std::vector<TensorSource>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  SafetensorsWriter writer(path, tensors, metadata);
  for (const TensorSource& source : tensors) writer.write(source.name, source.read());
  writer.commit();
}

}  // namespace d9d
