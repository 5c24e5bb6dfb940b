// Safetensors files: named tensors in one file, read by mapping it and written as a stream.
//
// Example
//   d9d::write_safetensors("model.safetensors", {d9d::tensor_source("norm.weight", norm_weight)});
//   const d9d::SafetensorsFile file("model.safetensors");
//   const at::Tensor weight = file.tensor("norm.weight");
//
// All dtypes of the format that LibTorch has pass through unchanged, BF16 and the F8 kinds included. Local, blocking.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

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

  // A CPU tensor over the mapped bytes; it keeps the mapping alive and may outlive this object. Writing to it changes
  // memory only, never the file. Data that is not aligned to its elements is copied. StateError when there is none.
  [[nodiscard]] at::Tensor tensor(const std::string& name) const;

 private:
  std::string path_;
  std::shared_ptr<MappedFile> mapping_;
  SafetensorsHeader header_;
};

// Writes all `tensors` into one file that appears whole (AtomicFile), byte for byte what the Python package writes for
// them. Reads the sources one at a time; strides, aliases and devices do not matter. StateError on equal names, on
// dtypes that the format lacks, and on a source that breaks its promise.
void write_safetensors(const std::filesystem::path& path, std::vector<TensorSource> tensors,
                       const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

}  // namespace d9d
