#include "d9d/models/huggingface/module_weights.h"

#include <algorithm>
#include <map>

#include "d9d/models/legacy_names.h"

namespace d9d {
namespace {

std::vector<TensorMapping> identity_mappings(const std::map<std::string, ParameterPtr>& parameters) {
  std::vector<TensorMapping> mappings;
  for (const auto& [name, parameter] : parameters)
    mappings.push_back(rename_tensor(name, name, parameter->global_shape()));
  return mappings;
}

}  // namespace

std::vector<std::string> load_weights(Module& module, const std::vector<TensorMapping>& mappings,
                                      const HuggingFaceDirectory& directory) {
  std::map<std::string, ParameterPtr> parameters;
  std::vector<std::string> wanted;
  for (const auto& [name, parameter] : module.named_parameters()) {
    parameters.emplace(name, parameter);
    wanted.push_back(name);
  }
  const auto find = accept_legacy_head_names([&](const std::string& name) { return directory.find(name); });
  const bool has_own_names =
      std::ranges::all_of(wanted, [&](const std::string& name) { return find(name).has_value(); });
  const std::vector<TensorMapping> used =
      has_own_names ? identity_mappings(parameters) : select_outputs(mappings, wanted);
  for (const TensorSource& tensor : map_tensors(used, find)) parameters.at(tensor.name)->copy_from(tensor.read());
  return has_own_names ? std::vector<std::string>{} : unused_names(mappings, directory.names());
}

}  // namespace d9d
