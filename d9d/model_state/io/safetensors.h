// Safetensors files: named tensors in one file, read by mapping it and written as a stream.
//
// Example
//   d9d::write_safetensors("model.safetensors", {d9d::tensor_source("norm.weight", norm_weight)});
//   const d9d::SafetensorsFile file("model.safetensors");
//   const at::Tensor weight = file.tensor("norm.weight");
//
// All dtypes of the format that LibTorch supports are preserved, including BF16 and the F8 types. Local, blocking.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/base/io/atomic_file.h"
#include "d9d/base/io/mapped_file.h"
#include "d9d/model_state/io/safetensors_header.h"
#include "d9d/model_state/tensor_source.h"

namespace d9d {

class SafetensorsFile {
 public:
  // Maps the file and checks its whole header (parse_safetensors_header). No tensor data is read.
  explicit SafetensorsFile(const std::filesystem::path& path);

  [[nodiscard]] const std::map<std::string, SafetensorsEntry>& entries() const { return header_.entries; }
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const { return header_.metadata; }

  // A CPU tensor over the mapped bytes. It keeps the mapping alive and may outlive this object. Writing to it changes
  // memory only, never the file. Data that is not aligned to its elements is copied. Throws StateError if there is no
  // such tensor.
  [[nodiscard]] at::Tensor tensor(const std::string& name) const;

 private:
  std::string path_;
  std::shared_ptr<MappedFile> mapping_;
  SafetensorsHeader header_;
};

// Writes a file whose tensors come in any order. It appears when all of them have been written.
class SafetensorsWriter {
 public:
  // `tensors` are described, not read. Throws StateError for equal names and for dtypes that the format lacks.
  SafetensorsWriter(const std::filesystem::path& path, const std::vector<TensorSource>& tensors,
                    const std::map<std::string, std::string>& metadata = {{"format", "pt"}});
  // Strides and devices do not matter. Throws StateError for a name, a dtype or a shape that was not described.
  void write(const std::string& name, const at::Tensor& tensor);
  // Throws StateError that lists tensors which were not written.
  void commit();

 private:
  struct Place {
    TensorSource described;
    std::int64_t position;
    bool is_written = false;
  };
  AtomicFile file_;
  std::map<std::string, Place> places_;
};

// Writes all `tensors` into one file that appears completely or not at all (AtomicFile). Its bytes equal those that the
// Python package writes. Reads the sources one at a time; strides, aliases and devices do not matter. Throws StateError
// for equal names, for dtypes that the format lacks, and for a source whose tensor does not match its description.
void write_safetensors(const std::filesystem::path& path, const std::vector<TensorSource>& tensors,
                       const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

}  // namespace d9d
