// Outputs of a mapper as sources, for streaming model state from and to folders.
//
// Example
//   const d9d::HuggingFaceDirectory directory("checkpoint");
//   const StateMapper mapper = d9d::mapper::rename("gate.weight", "router.gate.weight");
//   for (const auto& tensor : d9d::mapped_sources(mapper, tensors_of(directory))) write(tensor.name, tensor.read());
//
// Local; no communication.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "d9d/model_state/mapper/state_mapper.h"
#include "d9d/model_state/tensor_source.h"

namespace d9d {

class HuggingFaceDirectory;

// Tensors that can be read by name, from files or from memory.
struct NamedTensors {
  std::vector<std::string> names;  // sorted
  std::function<std::optional<TensorSource>(const std::string& name)> find;
};

// `directory` is borrowed.
[[nodiscard]] NamedTensors tensors_of(const HuggingFaceDirectory& directory);
[[nodiscard]] NamedTensors tensors_of(std::map<std::string, at::Tensor> state);

// A group of a mapper with the sources of its inputs.
struct SourceGroup {
  MappedGroup mapped;
  std::map<std::string, TensorSource> inputs;
};

// The mapper's groups that output any of `wanted`, sorted, after all checks that need no data: nothing is read. Throws
// StateError that lists all missing inputs; for shapes and dtypes that do not fit, naming leaf, tensors and files; and
// for `wanted` names that no group outputs. `may_be_missing`: whether an output may be missing. A group whose inputs
// are all missing is left out if all its outputs may be missing; a group with some of its inputs counts as damaged and
// is never left out.
[[nodiscard]] std::vector<SourceGroup> source_groups(
    const StateMapper& mapper, const NamedTensors& tensors, const std::set<std::string>& wanted,
    const std::function<bool(const std::string& output)>& may_be_missing = nullptr);

// For an output of a group without functions: adds to `reads` the reads that fill `values`, its elements `box`.
// Elements of inputs that are not in a file are copied immediately.
void add_reads(const MappedTensor& output, const LocalBox& box, const at::Tensor& values,
               const std::map<std::string, TensorSource>& inputs, std::vector<BoxRead>& reads);

// The outputs of a group that are in `wanted`. Reads all inputs of the group.
[[nodiscard]] std::map<std::string, DTensor> read_group(const SourceGroup& group, const std::set<std::string>& wanted);

// All outputs, group by group, as sources that read their inputs when they are read. A group with functions is computed
// when one of its outputs is read, and kept until all of them have been. Throws as source_groups().
[[nodiscard]] std::vector<TensorSource> mapped_sources(const StateMapper& mapper, const NamedTensors& tensors);

// The elements of `names` that are no input of the mapper, for a warning about tensors that a model ignores.
[[nodiscard]] std::vector<std::string> unused_names(const StateMapper& mapper, const std::vector<std::string>& names);

}  // namespace d9d
