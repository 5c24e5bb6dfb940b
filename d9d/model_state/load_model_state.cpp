#include "d9d/model_state/load_model_state.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "d9d/base/check.h"
#include "d9d/base/name_regex.h"
#include "d9d/core/dtensor/held_parts.h"

namespace d9d {
namespace {

// A parameter or buffer to fill.
struct Target {
  DTensor tensor;
  ParameterPtr parameter;  // null: a buffer
};

std::map<std::string, Target> targets_of(const Module& module, const StateMapper& mapper) {
  std::map<std::string, Target> targets;
  for (const auto& [name, parameter] : module.named_parameters()) {
    targets.emplace(name, Target{.tensor = parameter->dtensor(), .parameter = parameter});
  }
  const std::set<std::string> outputs = mapper.outputs();
  for (const auto& [name, buffer] : module.named_buffers()) {
    if (buffer->is_persistent && outputs.contains(name)) {
      targets.emplace(name, Target{.tensor = whole_dtensor(buffer->local), .parameter = nullptr});
    }
  }
  return targets;
}

std::function<bool(const std::string&)> matcher(const std::string& pattern) {
  if (pattern.empty()) return nullptr;
  return [regex = NameRegex(pattern, "[model_state::load] ", "of names that may be missing")](const std::string& name) {
    return regex.matches(name);
  };
}

void check_output(const std::string& name, const MappedTensor& output, const DTensor& target,
                  const SourceGroup& group) {
  const auto& [input, source] = *group.inputs.begin();
  D9D_CHECK(output.spec.mesh.axes().empty(), StateError, "[model_state::load] expected a mapper without layouts, got ",
            "'", name, "' distributed: parts are cut as the model's parameters are. Leave mapper::distribute out.");
  D9D_CHECK(output.spec.shape == target.global_shape, StateError, "[model_state::load] expected the tensor for '", name,
            "' to have shape ", at::IntArrayRef(target.global_shape), ", got ", at::IntArrayRef(output.spec.shape),
            " from '", input, "' in ", source.origin, ". Check that checkpoint and model parameters belong together.");
}

void fill_computed(const SourceGroup& group, const std::map<std::string, Target>& targets) {
  std::set<std::string> wanted;
  for (const auto& [name, output] : group.mapped.outputs) {
    if (targets.contains(name)) wanted.insert(name);
  }
  for (const auto& [name, output] : read_group(group, wanted)) {
    for (const HeldPart& held : held_parts(targets.at(name).tensor)) {
      held.values.copy_(view_of(output.local, whole_box(output.global_shape), held.box));
    }
  }
}

}  // namespace

LoadReport load_model_state(Module& module, const StateMapper& mapper, const NamedTensors& tensors,
                            const LoadOptions& options) {
  const at::NoGradGuard no_grad;
  const std::map<std::string, Target> targets = targets_of(module, mapper);
  std::set<std::string> wanted;
  for (const auto& [name, target] : targets) wanted.insert(name);
  const std::vector<SourceGroup> groups = source_groups(mapper, tensors, wanted, matcher(options.may_be_missing));
  for (const SourceGroup& group : groups) {
    for (const auto& [name, output] : group.mapped.outputs) {
      if (wanted.contains(name)) check_output(name, output, targets.at(name).tensor, group);
    }
  }
  LoadReport report{.unused = unused_names(mapper, tensors.names)};
  std::vector<BoxRead> reads;
  for (const SourceGroup& group : groups) {
    for (const auto& [name, output] : group.mapped.outputs) {
      if (wanted.erase(name) == 0) continue;
      report.loaded.push_back(name);
      if (!group.mapped.calls.empty()) continue;
      for (const HeldPart& held : held_parts(targets.at(name).tensor)) {
        add_reads(output, held.box, held.values, group.inputs, reads);
      }
    }
  }
  report.bytes = read_boxes(reads, options.read);
  for (const SourceGroup& group : groups) {
    if (!group.mapped.calls.empty()) fill_computed(group, targets);
  }
  for (const std::string& name : report.loaded) {
    if (const ParameterPtr& parameter = targets.at(name).parameter) parameter->mark_filled();
  }
  std::ranges::sort(report.loaded);
  for (const std::string& name : wanted) {
    if (targets.at(name).parameter != nullptr) report.missing.push_back(name);
  }
  return report;
}

}  // namespace d9d
