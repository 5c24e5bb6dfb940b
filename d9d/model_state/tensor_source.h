// A tensor that is read or made only when it is needed: what it will be, and how to get it. Model state streams as
// lists of these, so that one tensor at a time is in memory.
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

namespace d9d {

struct TensorSource {
  std::string name;
  at::ScalarType dtype;
  std::vector<std::int64_t> shape;
  std::function<at::Tensor()> read;  // each call gives a tensor of this dtype and shape; it may alias others
  std::string origin = "memory";     // for messages: the file that holds it
};

// A source over a tensor that is there already; shares its storage.
[[nodiscard]] TensorSource tensor_source(std::string name, at::Tensor tensor);

// Bytes of the tensor when contiguous.
[[nodiscard]] std::int64_t num_bytes(const TensorSource& source);

// Reads, and throws StateError with the name unless dtype and shape are the promised ones.
[[nodiscard]] at::Tensor read_checked(const TensorSource& source);

}  // namespace d9d
