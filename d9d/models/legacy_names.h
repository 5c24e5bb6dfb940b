// Folders in this library's own names, such as exports with mapper::identities_of_module(). Heads had other names
// before they were composed with backbones (d9d 0.16): lm_head.lm_head.<split>.weight, cls_head.score.weight,
// embedding_head.projection.weight.
//
// Example
//   const std::vector<std::string> names = directory.names();
//   const d9d::StateMapper mapper = d9d::has_own_names(*model, names)
//                                       ? d9d::own_names(*model, names)
//                                       : d9d::qwen3_dense_from_huggingface(parameters, head, names);
//   d9d::load_model_state(*model, mapper, d9d::tensors_of(directory));
#pragma once

#include <string>
#include <vector>

#include "d9d/model_state/mapper/state_mapper.h"
#include "d9d/modules/module.h"

namespace d9d {

// Whether the folder has every parameter of the module under its present name, or, for a head, under its name of 0.16.
// Adapters may be missing: the folder may have been written without them.
[[nodiscard]] bool has_own_names(const Module& module, const std::vector<std::string>& names_in_folder,
                                 const std::string& head_prefix = "head.");

// Takes every parameter of the module under its present name, or, for a head whose present name the folder lacks, under
// its name of 0.16. `head_prefix`: the head's prefix in present names.
[[nodiscard]] StateMapper own_names(const Module& module, const std::vector<std::string>& names_in_folder,
                                    const std::string& head_prefix = "head.");

// Converts a head's name of 0.16 to its present name; returns any other name unchanged.
[[nodiscard]] std::string present_name(const std::string& name, const std::string& head_prefix = "head.");

}  // namespace d9d
