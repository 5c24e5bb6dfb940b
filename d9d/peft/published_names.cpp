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

std::string peft_name(const std::string& module, const std::string& part, LowRankProduct product) {
  if (product != LowRankProduct::kTable) return peft_name(module, part);
  return "base_model.model." + module + (part == "lora_A" ? ".lora_embedding_A" : ".lora_embedding_B");
}

std::string peft_magnitude_name(const std::string& module) {
  return "base_model.model." + module + ".lora_magnitude_vector";
}

PublishedNames::PublishedNames(StateMapper exported) : exported_(std::move(exported)) {
  for (const StateGroup& group : exported_.groups()) {
    inputs_.insert(group.inputs);
    for (const std::string& name : group.outputs) modules_.insert(module_of(name));
  }
}

MappedTensors PublishedNames::made_of(const Shapes& parameters) const {
  std::set<std::string> names;
  std::map<std::string, StateSpec> specs;
  for (const auto& [name, shape] : parameters) {
    names.insert(name);
    specs.emplace(name, StateSpec{.dtype = at::kFloat, .shape = shape});
  }
  D9D_CHECK(inputs_.contains(names), ConfigError, "[peft] expected ", detail::quoted(names),
            " to be a tensor of its own in the published model, got it joined with others or left out", kOtherForm);
  return exported_.map(specs).outputs;
}

std::string PublishedNames::name_of(const std::vector<AdaptedWeight>& weights) const {
  Shapes shapes;
  for (const AdaptedWeight& weight : weights) shapes.emplace(weight.merged, weight.shape);
  const MappedTensors outputs = made_of(shapes);
  const auto& [name, tensor] = *outputs.begin();
  const auto dims = all_dims(weights[0].shape.size());
  bool are_joined = outputs.size() == 1 && tensor.parts.size() == weights.size();
  std::int64_t rows = 0;
  for (std::size_t i = 0; are_joined && i < weights.size(); ++i) {
    const TensorPart& part = tensor.parts[i];
    are_joined = part.input == weights[i].merged && part.source.sizes == weights[i].shape && part.dims == dims &&
                 part.target.start[0] == rows;
    rows += weights[i].shape[0];
  }
  D9D_CHECK(are_joined, ConfigError, "[peft] expected '", weights[0].merged, "' to be ",
            weights.size() == 1 ? "one tensor of its shape" : "joined with the other splits, in order,",
            " in the published model, got ", outputs.size(), " tensors, the first of shape ",
            at::IntArrayRef(tensor.spec.shape), kOtherForm);
  return name;
}

std::string PublishedNames::name_of(const std::string& parameter, const std::vector<std::int64_t>& shape) const {
  return name_of({{.stored = parameter, .merged = parameter, .shape = shape}});
}

std::vector<std::string> PublishedNames::modules_of(const AdaptedModule& adapted) const {
  if (!adapted.is_experts()) return {module_of(name_of(adapted.weights))};
  const AdaptedWeight& weight = adapted.weights[0];
  const std::int64_t num_experts = weight.shape[0];
  std::map<std::int64_t, std::string> of_expert;
  for (const auto& [name, tensor] : made_of({{weight.merged, weight.shape}})) {
    const bool is_expert = is_part_with(tensor, {2, 1}) && tensor.parts[0].source.sizes[0] == 1;
    if (is_expert) of_expert.emplace(tensor.parts[0].source.start[0], module_of(name));
  }
  D9D_CHECK(std::ssize(of_expert) == num_experts, ConfigError,
            "[peft] expected a published matrix [out, in] for each of ", num_experts, " experts of '", weight.merged,
            "', got ", of_expert.size(), kOtherForm);
  std::vector<std::string> modules;
  for (auto& [expert, module] : of_expert) modules.push_back(std::move(module));
  return modules;
}

}  // namespace d9d
