// A module's weights from and to a Hugging Face folder, by a family's mappings.
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

// A folder whose tensors have this library's own names (an identity export of d9d, 0.16's head names included) is read
// by those instead of the mappings. Copies into every parameter of the module, one tensor in memory at a time; the
// module keeps its dtype and device. Parameters that the module does not have (another pipeline stage's) are not read.
// Throws StateError that lists the parameters which no mapping makes, before anything is read. Returns the tensors of
// the folder that nothing took.
[[nodiscard]] std::vector<std::string> load_weights(Module& module, const std::vector<TensorMapping>& mappings,
                                                    const HuggingFaceDirectory& directory);

}  // namespace d9d
