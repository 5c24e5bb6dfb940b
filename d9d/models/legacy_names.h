// Names of this library's state before heads were composed with backbones (d9d 0.16), so that old exports still load.
//
// Example
//   const auto find = d9d::accept_legacy_head_names([&](const std::string& name) { return directory.find(name); });
//   for (const auto& tensor : d9d::map_tensors(mappings, find)) ...   // reads head.* from lm_head.*, cls_head.*, ...
#pragma once

#include <string>

#include "d9d/model_state/tensor_mapping.h"

namespace d9d {

// Looks for a tensor of a head under its present name, then under its name in 0.16: lm_head.lm_head.<split>.weight,
// cls_head.score.weight, embedding_head.projection.weight. Other names are passed through. `head_prefix`: the prefix in
// present names.
[[nodiscard]] FindTensor accept_legacy_head_names(FindTensor find, std::string head_prefix = "head.");

}  // namespace d9d
