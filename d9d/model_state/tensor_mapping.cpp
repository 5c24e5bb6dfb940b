#include "d9d/model_state/tensor_mapping.h"

#include <set>

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/model_state/io/huggingface_directory.h"

namespace d9d {
namespace {

std::string join(const std::set<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += cat(text.empty() ? "'" : ", '", name, "'");
  return text;
}

void check_none_missing(const std::vector<TensorMapping>& mappings, const FindTensor& find) {
  std::set<std::string> missing;
  for (const TensorMapping& mapping : mappings) {
    for (const NamedShape& input : mapping.inputs) {
      if (!find(input.name)) missing.insert(input.name);
    }
  }
  D9D_CHECK(missing.empty(), StateError, "[model_state::map_tensors] expected every tensor that the model needs, got ",
            missing.size(), " missing: ", join(missing),
            ". Check that checkpoint and model parameters belong together.");
}

TensorSource source_of(const TensorMapping& mapping, const FindTensor& find) {
  std::vector<TensorSource> inputs;
  for (const NamedShape& expected : mapping.inputs) {
    inputs.push_back(*find(expected.name));
    const TensorSource& input = inputs.back();
    D9D_CHECK(input.shape == expected.shape, StateError, "[model_state::map_tensors] expected tensor '", input.name,
              "' in ", input.origin, " to have shape ", at::IntArrayRef(expected.shape), ", got ",
              at::IntArrayRef(input.shape), ". Check that checkpoint and model parameters belong together.");
    D9D_CHECK(input.dtype == inputs.front().dtype, StateError, "[model_state::map_tensors] expected '", input.name,
              "' in ", input.origin, " to have the dtype of '", inputs.front().name, "', ", inputs.front().dtype,
              ", because both become '", mapping.output.name, "', got ", input.dtype, ". Convert one of them.");
  }
  const at::ScalarType dtype = inputs.at(0).dtype;
  std::string origin = inputs[0].origin;
  return {.name = mapping.output.name,
          .dtype = dtype,
          .shape = mapping.output.shape,
          .read =
              [inputs = std::move(inputs), apply = mapping.apply] {
                std::vector<at::Tensor> tensors;
                for (const TensorSource& input : inputs) tensors.push_back(input.read());
                return apply(tensors);
              },
          .origin = std::move(origin)};
}

}  // namespace

TensorMapping rename_tensor(std::string from, std::string to, std::vector<std::int64_t> shape) {
  return {.inputs = {{std::move(from), shape}},
          .output = {std::move(to), shape},
          .apply = [](std::span<const at::Tensor> inputs) { return inputs[0]; }};
}

std::vector<TensorSource> map_tensors(const std::vector<TensorMapping>& mappings, const FindTensor& find) {
  check_none_missing(mappings, find);
  std::vector<TensorSource> outputs;
  std::set<std::string> names;
  for (const TensorMapping& mapping : mappings) {
    D9D_ASSERT(names.insert(mapping.output.name).second, "two mappings make '", mapping.output.name, "'");
    outputs.push_back(source_of(mapping, find));
  }
  return outputs;
}

std::vector<TensorSource> map_tensors(const std::vector<TensorMapping>& mappings,
                                      const HuggingFaceDirectory& directory) {
  return map_tensors(mappings, [&](const std::string& name) { return directory.find(name); });
}

std::vector<TensorSource> map_tensors(const std::vector<TensorMapping>& mappings,
                                      const std::map<std::string, at::Tensor>& state) {
  return map_tensors(mappings, [&](const std::string& name) -> std::optional<TensorSource> {
    const auto found = state.find(name);
    if (found == state.end()) return std::nullopt;
    return tensor_source(name, found->second);
  });
}

std::vector<TensorMapping> select_outputs(const std::vector<TensorMapping>& mappings,
                                          const std::vector<std::string>& wanted) {
  std::set<std::string> left(wanted.begin(), wanted.end());
  std::vector<TensorMapping> selected;
  for (const TensorMapping& mapping : mappings) {
    if (left.erase(mapping.output.name) > 0) selected.push_back(mapping);
  }
  D9D_CHECK(left.empty(), StateError, "[model_state::select_outputs] expected a mapping for every wanted tensor, got ",
            "none for ", join(left), ". Check the names' prefixes, or leave out what the other side does not hold.");
  return selected;
}

std::vector<std::string> unused_names(const std::vector<TensorMapping>& mappings,
                                      const std::vector<std::string>& names) {
  std::set<std::string> used;
  for (const TensorMapping& mapping : mappings) {
    for (const NamedShape& input : mapping.inputs) used.insert(input.name);
  }
  std::vector<std::string> unused;
  for (const std::string& name : names) {
    if (!used.contains(name)) unused.push_back(name);
  }
  return unused;
}

}  // namespace d9d
