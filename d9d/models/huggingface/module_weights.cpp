#include "d9d/models/huggingface/module_weights.h"

#include <algorithm>
#include <set>

#include "d9d/models/legacy_names.h"

namespace d9d {

LoadReport load_weights(Module& module, const StateMapper& mapper, const HuggingFaceDirectory& directory,
                        const LoadOptions& options) {
  const NamedTensors tensors = tensors_of(directory);
  const StateMapper own = own_names(module, tensors.names);
  const bool has_own_names = std::ranges::includes(tensors.names, own.inputs());
  return load_model_state(module, has_own_names ? own : mapper, tensors, options);
}

}  // namespace d9d
