// Loads a module's weights from a Hugging Face folder with a family's mappings.
//
// Example
//   const HuggingFaceDirectory directory("Qwen3-0.6B");
//   load_weights(*model, qwen3_dense_from_huggingface(parameters, CausalLMHeadConfig{}, directory.names()), directory);
#pragma once

#include <string>
#include <vector>

#include "d9d/model_state/io/huggingface_directory.h"
#include "d9d/model_state/tensor_mapping.h"
#include "d9d/modules/module.h"

namespace d9d {

// If the folder's tensors have this library's own names (an identity export of d9d, including the head names of 0.16),
// they are read by these names instead of the mappings. Copies into every parameter of the module, with one tensor in
// memory at a time; the module keeps its dtype and device. Parameters that the module does not have (those of another
// pipeline stage) are not read. Throws StateError that lists the parameters which no mapping produces, before anything
// is read. Returns the tensors of the folder that were not used.
[[nodiscard]] std::vector<std::string> load_weights(Module& module, const std::vector<TensorMapping>& mappings,
                                                    const HuggingFaceDirectory& directory);

}  // namespace d9d
