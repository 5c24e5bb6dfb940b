// Parses and formats the header of a safetensors file. Format: 8 bytes little-endian length N, N bytes of JSON
// {"<name>": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [begin, end]}, "__metadata__": {"<key>": "<text>"}},
// then the tensors' data, row-major and without gaps. Source: https://github.com/huggingface/safetensors#format
//
// Example
//   const d9d::SafetensorsHeader header = d9d::parse_safetensors_header(file.bytes(), "model.safetensors");
//   const d9d::SafetensorsEntry& weight = header.entries.at("norm.weight");
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

#include "d9d/model_state/tensor_source.h"

namespace d9d {

struct SafetensorsEntry {
  c10::ScalarType dtype;
  std::vector<std::int64_t> shape;
  std::size_t offset;  // of the first byte, from the start of the file
  std::size_t size;    // bytes
  // The dtype's name if this library does not know it; `dtype` is Undefined then.
  std::string unknown_dtype = {};
};

struct SafetensorsHeader {
  std::map<std::string, SafetensorsEntry> entries;
  std::map<std::string, std::string> metadata;
};

// Parses and checks the header of a whole file. Every returned entry lies within `file` and has the byte count of its
// shape and dtype (any number of bytes if this library does not know the dtype), and together the entries cover the
// data exactly once. Otherwise throws IoError that names `path` and, if one is concerned, the tensor. No number in the
// file is used unchecked.
[[nodiscard]] SafetensorsHeader parse_safetensors_header(std::span<const std::byte> file, const std::string& path);

// Sorts `tensors` into their order in a file: widest dtype first, so that each is aligned to its elements, then by name
// (as the Python package does). Throws StateError for equal names and for dtypes that the format lacks.
[[nodiscard]] std::vector<TensorSource> in_safetensors_order(std::vector<TensorSource> tensors);

// Length and JSON for `tensors` in that order, padded with spaces to a multiple of 8 bytes.
[[nodiscard]] std::string format_safetensors_header(std::span<const TensorSource> tensors,
                                                    const std::map<std::string, std::string>& metadata);

}  // namespace d9d
