// Loads a module's weights from a Hugging Face folder with a family's mapper.
//
// Example
//   const HuggingFaceDirectory directory("Qwen3-0.6B");
//   load_weights(*model, qwen3_dense_from_huggingface(parameters, CausalLMHeadConfig{}, directory.names()), directory);
#pragma once

#include "d9d/model_state/io/huggingface_directory.h"
#include "d9d/model_state/load_model_state.h"

namespace d9d {

// load_model_state() with the mapper; or with own_names(), if the folder has every parameter of the module under this
// library's own name.
LoadReport load_weights(Module& module, const StateMapper& mapper, const HuggingFaceDirectory& directory,
                        const LoadOptions& options = {});

}  // namespace d9d
