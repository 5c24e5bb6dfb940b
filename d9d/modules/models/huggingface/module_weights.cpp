#include "d9d/modules/models/huggingface/module_weights.h"

#include <map>

namespace d9d {

std::vector<std::string> load_weights(Module& module, const std::vector<TensorMapping>& mappings,
                                      const HuggingFaceDirectory& directory) {
  std::map<std::string, ParameterPtr> parameters;
  std::vector<std::string> wanted;
  for (const auto& [name, parameter] : module.named_parameters()) {
    parameters.emplace(name, parameter);
    wanted.push_back(name);
  }
  for (const TensorSource& tensor : map_tensors(select_outputs(mappings, wanted), directory)) {
    parameters.at(tensor.name)->copy_from(tensor.read());
  }
  return unused_names(mappings, directory.names());
}

}  // namespace d9d
