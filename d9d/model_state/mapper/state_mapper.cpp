#include "d9d/model_state/mapper/state_mapper.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/base/config/name_list.h"

namespace d9d {
namespace {

std::vector<StateGroup> sorted(std::vector<StateGroup> groups) {
  std::ranges::sort(groups);
  return groups;
}

// Throws for the first name that two groups have.
void check_disjoint(const std::vector<StateGroup>& groups, std::set<std::string> StateGroup::*names, const char* what) {
  std::set<std::string> seen;
  for (const StateGroup& group : groups) {
    for (const std::string& name : group.*names) {
      D9D_CHECK(seen.insert(name).second, ConfigError, "[model_state::mapper] expected each ", what,
                " in one mapper only, got colliding ", what, "s: '", name, "' in two. Rename it, or for an input that ",
                "several need, use mapper::copy.");
    }
  }
}

// The tensor that an output equals unchanged; null if there is none.
const DTensor* forwarded(const MappedTensor& x, const std::map<std::string, DTensor>& tensors) {
  if (x.parts.size() != 1 || !x.parts[0].casts.empty() || !std::ranges::is_sorted(x.parts[0].dims)) return nullptr;
  const DTensor& tensor = tensors.at(x.parts[0].input);
  return tensor.global_shape == x.spec.shape && x.parts[0].source == x.parts[0].target ? &tensor : nullptr;
}

DTensor value_of(const MappedTensor& x, const std::map<std::string, DTensor>& tensors) {
  if (const DTensor* const same = forwarded(x, tensors)) return *same;
  return whole_dtensor(assembled_from_whole(x, [&](const std::string& input) { return tensors.at(input).local; }));
}

void check_result(const DTensor& result, const StateSpec& expected, const std::string& function) {
  D9D_CHECK(
      result.local.defined() && result.local.scalar_type() == expected.dtype && result.global_shape == expected.shape,
      StateError, "[model_state::mapper] expected '", function, "' to return ", expected.dtype, " of shape ",
      at::IntArrayRef(expected.shape), " as it was described, got ",
      result.local.defined() ? cat(result.local.scalar_type(), " of shape ", at::IntArrayRef(result.global_shape))
                             : "an undefined tensor",
      ".");
}

}  // namespace

namespace detail {

std::string quoted(const std::set<std::string>& names) {
  return quoted_list(std::vector<std::string_view>(names.begin(), names.end()));
}

MapperNode::MapperNode(std::vector<StateGroup> groups) : groups_(sorted(std::move(groups))) {
  check_disjoint(groups_, &StateGroup::inputs, "input");
  check_disjoint(groups_, &StateGroup::outputs, "output");
}

}  // namespace detail

std::set<std::string> StateMapper::inputs() const {
  std::set<std::string> names;
  for (const StateGroup& group : groups()) names.insert(group.inputs.begin(), group.inputs.end());
  return names;
}

std::set<std::string> StateMapper::outputs() const {
  std::set<std::string> names;
  for (const StateGroup& group : groups()) names.insert(group.outputs.begin(), group.outputs.end());
  return names;
}

MappedGroup StateMapper::map(const std::map<std::string, StateSpec>& inputs) const {
  std::set<std::string> names;
  MappedTensors tensors;
  for (const auto& [name, spec] : inputs) {
    names.insert(name);
    tensors.emplace(name, whole_tensor(name, spec));
  }
  D9D_CHECK(std::ranges::binary_search(groups(), names, {}, &StateGroup::inputs), StateError,
            "[model_state::mapper] expected all inputs of one group, got an undefined group of ", detail::quoted(names),
            ".");
  MappedGroup group{.inputs = inputs, .calls = {}, .outputs = {}};
  group.outputs = node_->map(tensors, group.calls);
  return group;
}

std::map<std::string, DTensor> run_group(const MappedGroup& group, const std::map<std::string, DTensor>& inputs,
                                         const std::set<std::string>& wanted) {
  std::map<std::string, DTensor> tensors = inputs;
  for (const FunctionCall& call : group.calls) {
    std::vector<DTensor> arguments;
    for (const MappedTensor& input : call.inputs) arguments.push_back(value_of(input, tensors));
    const std::vector<DTensor> results = call.function->apply(arguments);
    D9D_CHECK(results.size() == call.specs.size(), StateError, "[model_state::mapper] expected ", call.specs.size(),
              " results of '", call.function->name, "', got ", results.size(), ".");
    for (std::size_t i = 0; i < results.size(); ++i) {
      check_result(results[i], call.specs[i], call.function->name);
      tensors.insert_or_assign(call.results[i], results[i]);
    }
  }
  std::map<std::string, DTensor> outputs;
  for (const auto& [name, output] : group.outputs) {
    if (wanted.contains(name)) outputs.emplace(name, value_of(output, tensors));
  }
  return outputs;
}

std::map<std::string, DTensor> StateMapper::apply(const std::map<std::string, DTensor>& inputs) const {
  std::map<std::string, StateSpec> specs;
  for (const auto& [name, tensor] : inputs) specs.emplace(name, spec_of(tensor));
  auto outputs = run_group(map(specs), inputs, this->outputs());
  for (auto& [name, output] : outputs) output.local = output.local.contiguous();
  return outputs;
}

std::map<std::string, at::Tensor> StateMapper::apply(const std::map<std::string, at::Tensor>& inputs) const {
  std::map<std::string, DTensor> tensors;
  for (const auto& [name, tensor] : inputs) tensors.emplace(name, whole_dtensor(tensor));
  std::map<std::string, at::Tensor> outputs;
  for (const auto& [name, output] : apply(tensors)) {
    D9D_CHECK(output.mesh.axes().empty(), StateError, "[model_state::mapper] expected whole outputs, got '", name,
              "' distributed over mesh '", output.mesh.name(), "'. Apply the mapper to DTensors.");
    outputs.emplace(name, output.local);
  }
  return outputs;
}

StateSpec spec_of(const DTensor& tensor) {
  return {.dtype = tensor.local.scalar_type(),
          .shape = tensor.global_shape,
          .mesh = tensor.mesh,
          .placements = tensor.placements};
}

}  // namespace d9d
