// Converts tensors of one naming scheme into tensors of another: each mapping takes named tensors of known shapes and
// makes one. Mappings are data, so that names and shapes can be checked before a file is opened, and a subset can be
// selected by name.
//
// Example
//   const d9d::HuggingFaceDirectory directory("checkpoint");
//   const std::vector<d9d::TensorMapping> mappings = {d9d::rename_tensor("gate.weight", "router.gate.weight", {8, 4})};
//   for (const auto& tensor : d9d::map_tensors(mappings, directory)) state.at(tensor.name).copy_(tensor.read());
//
// Local; no communication.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/model_state/tensor_source.h"

namespace d9d {

class HuggingFaceDirectory;

struct NamedShape {
  std::string name;
  std::vector<std::int64_t> shape;
};

struct TensorMapping {
  std::vector<NamedShape> inputs;  // all of one dtype
  NamedShape output;               // of that dtype
  // Gets the inputs in order; returns the output, which may be a view of them.
  std::function<at::Tensor(std::span<const at::Tensor>)> apply;
};

// The same tensor under another name.
[[nodiscard]] TensorMapping rename_tensor(std::string from, std::string to, std::vector<std::int64_t> shape);

// Finds a tensor by its name; none if there is no such tensor.
using FindTensor = std::function<std::optional<TensorSource>(const std::string& name)>;

// The outputs as sources that read their inputs when they are read, so that only one output is in memory at a time.
// First checks all inputs without reading data. Throws StateError that lists all missing names; or that names file,
// tensor and the two shapes of the first mismatch; or that names two dtypes within one mapping.
[[nodiscard]] std::vector<TensorSource> map_tensors(const std::vector<TensorMapping>& mappings, const FindTensor& find);
[[nodiscard]] std::vector<TensorSource> map_tensors(const std::vector<TensorMapping>& mappings,
                                                    const HuggingFaceDirectory& directory);
[[nodiscard]] std::vector<TensorSource> map_tensors(const std::vector<TensorMapping>& mappings,
                                                    const std::map<std::string, at::Tensor>& state);

// The mappings that make the `wanted` outputs, such as the parameters of one pipeline stage, in their order. Throws
// StateError that lists the wanted names that no mapping makes.
[[nodiscard]] std::vector<TensorMapping> select_outputs(const std::vector<TensorMapping>& mappings,
                                                        const std::vector<std::string>& wanted);

// The elements of `names` that no mapping uses, for a warning about tensors of a checkpoint that the model ignores.
[[nodiscard]] std::vector<std::string> unused_names(const std::vector<TensorMapping>& mappings,
                                                    const std::vector<std::string>& names);

}  // namespace d9d
