#include "d9d/peft/published_names.h"

#include <utility>

#include "d9d/base/check.h"

namespace d9d {
namespace {

constexpr const char* kOtherForm = ": adapters of it cannot be written for Hugging Face peft. Export merged weights.";

std::string module_of(const std::string& name) { return name.substr(0, name.rfind('.')); }

// Whether the tensor is one part of an input, with these dims of it.
bool is_part_with(const MappedTensor& tensor, const std::vector<std::int64_t>& dims) {
  return tensor.parts.size() == 1 && tensor.parts[0].dims == dims;
}

std::vector<std::int64_t> all_dims(std::size_t count) {
  std::vector<std::int64_t> dims(count);
  for (std::size_t i = 0; i < count; ++i) dims[i] = static_cast<std::int64_t>(i);
  return dims;
}

}  // namespace

std::string peft_name(const std::string& module, const std::string& part) {
  return "base_model.model." + module + "." + part + ".weight";
}

PublishedNames::PublishedNames(StateMapper exported) : exported_(std::move(exported)) {
  for (const StateGroup& group : exported_.groups()) {
    if (group.inputs.size() == 1) group_of_.emplace(*group.inputs.begin(), group);
    for (const std::string& name : group.outputs) modules_.insert(module_of(name));
  }
}

MappedTensors PublishedNames::made_of(const std::string& parameter, const std::vector<std::int64_t>& shape) const {
  D9D_CHECK(group_of_.contains(parameter), ConfigError, "[peft] expected '", parameter,
            "' to be a tensor of its own in the published model, got it joined with others or left out", kOtherForm);
  return exported_.map({{parameter, {.dtype = at::kFloat, .shape = shape}}}).outputs;
}

std::string PublishedNames::name_of(const std::string& parameter, const std::vector<std::int64_t>& shape) const {
  const MappedTensors outputs = made_of(parameter, shape);
  const auto& [name, tensor] = *outputs.begin();
  D9D_CHECK(outputs.size() == 1 && tensor.spec.shape == shape && is_part_with(tensor, all_dims(shape.size())),
            ConfigError, "[peft] expected '", parameter, "' to be one tensor of its shape in the published model, got ",
            outputs.size(), ", the first of shape ", at::IntArrayRef(tensor.spec.shape), kOtherForm);
  return name;
}

std::vector<std::string> PublishedNames::modules_of(const AdaptedLinear& linear) const {
  if (!linear.is_grouped()) return {module_of(name_of(linear.weight(), linear.weight_shape))};
  const std::int64_t num_experts = linear.weight_shape[0];
  std::map<std::int64_t, std::string> of_expert;
  for (const auto& [name, tensor] : made_of(linear.weight(), linear.weight_shape)) {
    const bool is_expert = is_part_with(tensor, {2, 1}) && tensor.parts[0].source.sizes[0] == 1;
    if (is_expert) of_expert.emplace(tensor.parts[0].source.start[0], module_of(name));
  }
  D9D_CHECK(std::ssize(of_expert) == num_experts, ConfigError,
            "[peft] expected a published matrix [out, in] for each of ", num_experts, " experts of '", linear.weight(),
            "', got ", of_expert.size(), kOtherForm);
  std::vector<std::string> modules;
  for (auto& [expert, module] : of_expert) modules.push_back(std::move(module));
  return modules;
}

}  // namespace d9d
