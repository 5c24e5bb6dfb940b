// A tensor described as boxes of other tensors: a mapper's description of an output before any data is read. Functions
// on it move boxes and not data, so that a chain of them costs one copy, and a rank copies only the boxes that it
// holds.
//
// Example
//   MappedTensor q = whole_tensor("q", {.dtype = at::kFloat, .shape = {4, 8}});
//   MappedTensor k = whole_tensor("k", {.dtype = at::kFloat, .shape = {2, 8}});
//   concatenated({q, k}, 0).parts;        // {0..4, 0..8} of q at {0, 0}, {0..2, 0..8} of k at {4, 0}
//
// Throws StateError for dims and shapes that do not fit.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/core/dtensor/dtensor.h"

namespace d9d {

struct StateSpec {
  at::ScalarType dtype;
  std::vector<std::int64_t> shape;  // of the whole tensor
  DeviceMesh mesh = {};             // without axes: the tensor is whole
  Placements placements = {};
};

// The elements `source` of an input fill `target`, a box of the output.
struct TensorPart {
  std::string input;
  LocalBox source;
  LocalBox target;
  std::vector<std::int64_t> dims;          // target's dim d runs along dim dims[d] of the input; -1: its size is 1
  std::vector<at::ScalarType> casts = {};  // conversions one after the other
};

struct MappedTensor {
  StateSpec spec;
  std::vector<TensorPart> parts;  // disjoint; together all elements
};

[[nodiscard]] MappedTensor whole_tensor(const std::string& name, StateSpec spec);

// As in LibTorch. Negative dims count from the end.
[[nodiscard]] MappedTensor transposed(const MappedTensor& x, std::int64_t dim0, std::int64_t dim1);
[[nodiscard]] MappedTensor unsqueezed(const MappedTensor& x, std::int64_t dim);
[[nodiscard]] MappedTensor squeezed(const MappedTensor& x, std::int64_t dim);  // the size must be 1
[[nodiscard]] MappedTensor narrowed(const MappedTensor& x, std::int64_t dim, std::int64_t start, std::int64_t length);
[[nodiscard]] MappedTensor concatenated(const std::vector<MappedTensor>& tensors, std::int64_t dim);
[[nodiscard]] MappedTensor converted(const MappedTensor& x, at::ScalarType dtype);

[[nodiscard]] std::int64_t size_of_dim(const MappedTensor& x, std::int64_t dim);

// The share of `part` that fills `box` of the output; none if it fills nothing of it.
[[nodiscard]] std::optional<TensorPart> part_within(const TensorPart& part, const LocalBox& box);

// The values of part.target: a view of `source_values`, the elements part.source of the input, unless they are
// converted.
[[nodiscard]] at::Tensor values_of(const TensorPart& part, const at::Tensor& source_values);
// The reverse: `target_values`, of part.target's shape, as a view of the shape of part.source.
[[nodiscard]] at::Tensor in_source_order(const TensorPart& part, const at::Tensor& target_values);

// The tensor's values. `source_values` is called for each part in turn, and returns the elements part.source of its
// input. The result is a view of them if there is only one part.
[[nodiscard]] at::Tensor assembled(const MappedTensor& x,
                                   const std::function<at::Tensor(const TensorPart& part)>& source_values);
// The same from whole inputs.
[[nodiscard]] at::Tensor assembled_from_whole(const MappedTensor& x,
                                              const std::function<at::Tensor(const std::string& input)>& find);

}  // namespace d9d
