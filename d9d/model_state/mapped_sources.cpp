#include "d9d/model_state/mapped_sources.h"

#include <algorithm>
#include <memory>
#include <utility>

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/core/dtensor/held_parts.h"
#include "d9d/core/error/error_place.h"
#include "d9d/model_state/io/huggingface_directory.h"

namespace d9d {
namespace {

using Names = std::set<std::string>;

bool makes_any(const StateGroup& group, const Names& wanted) {
  return std::ranges::any_of(group.outputs, [&](const std::string& name) { return wanted.contains(name); });
}

void check_made(const StateMapper& mapper, const Names& wanted) {
  Names unmade;
  std::ranges::set_difference(wanted, mapper.outputs(), std::inserter(unmade, unmade.end()));
  D9D_CHECK(unmade.empty(), StateError, "[model_state::mapper] expected a mapper that makes every tensor of the model,",
            " got none for ", detail::quoted(unmade), ". Check the names' prefixes, or say that they may be missing.");
}

SourceGroup mapped(const StateMapper& mapper, std::map<std::string, TensorSource> inputs) {
  std::map<std::string, StateSpec> specs;
  for (const auto& [name, source] : inputs)
    specs.emplace(name, StateSpec{.dtype = source.dtype, .shape = source.shape});
  const std::string place = cat("for '", inputs.begin()->first, "' in ", inputs.begin()->second.origin);
  try {
    return {.mapped = mapper.map(specs), .inputs = std::move(inputs)};
  } catch (const std::exception&) {
    add_error_place(place);
    throw;
  }
}

// Keeps the values of a group that is computed as a whole, until each has been read once.
class ComputedGroup {
 public:
  explicit ComputedGroup(const SourceGroup& group) : group_(group) {}
  at::Tensor take(const std::string& name) {
    if (!values_.contains(name)) {
      Names all;
      for (const auto& [output, tensor] : group_.mapped.outputs) all.insert(output);
      values_ = read_group(group_, all);
    }
    return values_.extract(name).mapped().local;
  }

 private:
  SourceGroup group_;
  std::map<std::string, DTensor> values_;
};

}  // namespace

NamedTensors tensors_of(const HuggingFaceDirectory& directory) {
  return {.names = directory.names(), .find = [&directory](const std::string& name) { return directory.find(name); }};
}

NamedTensors tensors_of(std::map<std::string, at::Tensor> state) {
  NamedTensors tensors;
  for (const auto& [name, tensor] : state) tensors.names.push_back(name);
  tensors.find = [state = std::move(state)](const std::string& name) -> std::optional<TensorSource> {
    const auto found = state.find(name);
    if (found == state.end()) return std::nullopt;
    return tensor_source(name, found->second);
  };
  return tensors;
}

std::vector<SourceGroup> source_groups(const StateMapper& mapper, const NamedTensors& tensors, const Names& wanted,
                                       const std::function<bool(const std::string& output)>& may_be_missing) {
  const auto is_optional = [&](const std::string& name) {
    return !wanted.contains(name) || (may_be_missing != nullptr && may_be_missing(name));
  };
  Names needed;
  std::ranges::copy_if(wanted, std::inserter(needed, needed.end()),
                       [&](const std::string& name) { return !is_optional(name); });
  check_made(mapper, needed);
  std::vector<std::map<std::string, TensorSource>> found;
  Names missing;
  for (const StateGroup& group : mapper.groups()) {
    if (!makes_any(group, wanted)) continue;
    Names absent;
    std::map<std::string, TensorSource> inputs;
    for (const std::string& name : group.inputs) {
      if (auto source = tensors.find(name)) {
        if (source->dtype == at::ScalarType::Undefined) (void)source->read();  // throws
        inputs.emplace(name, *std::move(source));
      } else {
        absent.insert(name);
      }
    }
    const bool is_whole = absent.empty(), is_damaged = !is_whole && !inputs.empty();
    if (is_whole) {
      found.push_back(std::move(inputs));
    } else if (is_damaged || !std::ranges::all_of(group.outputs, is_optional)) {
      missing.merge(absent);
    }
  }
  D9D_CHECK(missing.empty(), StateError, "[model_state::mapper] expected every tensor that the mapper takes, got ",
            missing.size(), " missing: ", detail::quoted(missing),
            ". Check that checkpoint and model parameters belong together.");
  std::vector<SourceGroup> groups;
  for (auto& inputs : found) groups.push_back(mapped(mapper, std::move(inputs)));
  return groups;
}

void add_reads(const MappedTensor& output, const LocalBox& box, const at::Tensor& values,
               const std::map<std::string, TensorSource>& inputs, std::vector<BoxRead>& reads) {
  for (const TensorPart& whole : output.parts) {
    const std::optional<TensorPart> part = part_within(whole, box);
    if (!part) continue;
    const at::Tensor into = view_of(values, box, part->target);
    const TensorSource& input = inputs.at(part->input);
    if (!input.stored.empty()) {
      for (BoxRead& read : reads_of(input, part->source, in_source_order(*part, into))) {
        read.casts = part->casts;
        reads.push_back(std::move(read));
      }
    } else {
      into.copy_(values_of(*part, view_of(input.read(), whole_box(input.shape), part->source)));
    }
  }
}

std::map<std::string, DTensor> read_group(const SourceGroup& group, const Names& wanted) {
  std::map<std::string, DTensor> inputs;
  for (const auto& [name, source] : group.inputs) inputs.emplace(name, whole_dtensor(source.read()));
  return run_group(group.mapped, inputs, wanted);
}

std::vector<TensorSource> mapped_sources(const StateMapper& mapper, const NamedTensors& tensors) {
  std::vector<TensorSource> sources;
  for (const SourceGroup& group : source_groups(mapper, tensors, mapper.outputs())) {
    const auto computed = std::make_shared<ComputedGroup>(group);
    const auto inputs = std::make_shared<const std::map<std::string, TensorSource>>(group.inputs);
    for (const auto& [name, output] : group.mapped.outputs) {
      TensorSource source{.name = name,
                          .dtype = output.spec.dtype,
                          .shape = output.spec.shape,
                          .read = {},
                          .origin = group.inputs.begin()->second.origin};
      if (group.mapped.calls.empty()) {
        source.read = [output, inputs] {
          return assembled_from_whole(output, [&](const std::string& input) { return inputs->at(input).read(); });
        };
      } else {
        source.read = [computed, name] { return computed->take(name); };
      }
      sources.push_back(std::move(source));
    }
  }
  return sources;
}

std::vector<std::string> unused_names(const StateMapper& mapper, const std::vector<std::string>& names) {
  const Names used = mapper.inputs();
  std::vector<std::string> unused;
  std::ranges::copy_if(names, std::back_inserter(unused),
                       [&](const std::string& name) { return !used.contains(name); });
  return unused;
}

}  // namespace d9d
