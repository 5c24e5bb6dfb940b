// A dry run of a mapper on the tensors of a folder. Reads headers but no data.
//
// Example
//   const HuggingFaceDirectory directory("published");
//   std::cout << text_of(report_mapping(mapper, tensors_of(directory)));
//
//   2 groups: 3 tensors of 96 B -> 2 tensors of 96 B
//
//   q_proj  Float [4, 2]  32 B
//   k_proj  Float [4, 2]  32 B
//     -> qk_proj  Float [8, 2]  64 B
//   ...
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "d9d/model_state/mapped_sources.h"

namespace d9d {

struct MappingReport {
  struct Group {
    std::vector<TensorSource> inputs;   // sorted by name; `origin` is the file
    std::vector<TensorSource> outputs;  // described only
    bool has_function = false;          // it is in memory as a whole
  };
  std::vector<Group> groups;          // groups whose inputs all exist
  std::vector<TensorSource> unused;   // tensors that are no input of the mapper
  std::vector<std::string> missing;   // inputs that do not exist; sorted
  std::vector<std::string> not_made;  // outputs of groups with missing inputs; sorted
};

// Local. Throws StateError for shapes and dtypes that do not fit, as source_groups() does.
[[nodiscard]] MappingReport report_mapping(const StateMapper& mapper, const NamedTensors& tensors);

// The report as text. Tensors of a group whose names differ only in numbers share a line, with * for the number
// (layers.*.mlp.up_proj.weight), and so do groups of such tensors.
[[nodiscard]] std::string text_of(const MappingReport& report);

}  // namespace d9d
