// The header of a safetensors file, to and from its bytes. Format: 8 bytes little-endian length N, N bytes of JSON
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
};

struct SafetensorsHeader {
  std::map<std::string, SafetensorsEntry> entries;
  std::map<std::string, std::string> metadata;
};

// Reads and checks the header of a whole file. Every entry that it returns lies within `file`, has the byte count of
// its shape and dtype, and together they cover the data exactly once. Anything else throws IoError naming `path` and,
// where there is one, the tensor: never trusts a number in the file.
[[nodiscard]] SafetensorsHeader parse_safetensors_header(std::span<const std::byte> file, const std::string& path);

// The order in which a file holds `tensors`: widest dtype first, so that each is aligned to its elements, then by name
// (as the Python package does). Throws StateError on two tensors of one name and on dtypes that the format lacks.
[[nodiscard]] std::vector<TensorSource> in_safetensors_order(std::vector<TensorSource> tensors);

// Length and JSON for `tensors` in that order, padded with spaces to a multiple of 8 bytes.
[[nodiscard]] std::string format_safetensors_header(std::span<const TensorSource> tensors,
                                                    const std::map<std::string, std::string>& metadata);

}  // namespace d9d
