// A tensor that is read or computed only when it is needed: its description, and how to get it. Model state is streamed
// as lists of these, so that only one tensor at a time is in memory.
//
// Example
//   std::vector<d9d::TensorSource> state = {d9d::tensor_source("norm.weight", norm_weight),
//                                           {.name = "head.weight", .dtype = at::kFloat, .shape = {8, 4},
//                                            .read = [&] { return at::cat({regular, special}); }}};
//   d9d::write_safetensors("model.safetensors", state);
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/model_state/io/box_reader.h"

namespace d9d {

// A box of a tensor that is stored on its own.
struct StoredPart {
  LocalBox box;         // of the whole tensor
  StoredTensor values;  // of the box's shape
};

struct TensorSource {
  std::string name;
  at::ScalarType dtype;  // Undefined: a dtype of a file that this library does not know; read() throws
  std::vector<std::int64_t> shape;
  std::function<at::Tensor()> read;     // each call returns a tensor of this dtype and shape, which may alias others
  std::string origin = "memory";        // for messages: the file that holds it
  std::vector<StoredPart> stored = {};  // its parts in files, from which boxes can be read; empty: not in files
};

// A source over an existing tensor; shares its storage.
[[nodiscard]] TensorSource tensor_source(std::string name, at::Tensor tensor);

// Number of bytes of the tensor in contiguous form; 0 if its dtype is unknown.
[[nodiscard]] std::int64_t num_bytes(const TensorSource& source);

// The reads that fill `into`, of the box's shape, with a box of a tensor that is stored in files.
[[nodiscard]] std::vector<BoxRead> reads_of(const TensorSource& source, const LocalBox& box, const at::Tensor& into);

// Reads the tensor, and throws StateError with its name unless dtype and shape are as described.
[[nodiscard]] at::Tensor read_checked(const TensorSource& source);

}  // namespace d9d
