#include "d9d/model_state/mapping_report.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "d9d/base/check.h"
#include "d9d/base/config/byte_size.h"

namespace d9d {
namespace {

std::int64_t bytes_of(const std::vector<TensorSource>& tensors) {
  std::int64_t bytes = 0;
  for (const TensorSource& tensor : tensors) bytes += num_bytes(tensor);
  return bytes;
}

std::string counted(std::size_t number, const char* what) { return cat(number, " ", what, number == 1 ? "" : "s"); }

// "layers.12.mlp.experts.3" -> "layers.*.mlp.experts.*"
std::string without_numbers(const std::string& name) {
  std::string result;
  for (std::size_t i = 0; i < name.size(); ++i) {
    const bool is_digit = std::isdigit(static_cast<unsigned char>(name[i])) != 0;
    const bool is_part = i == 0 || name[i - 1] == '.' || (is_digit && !result.empty() && result.back() == '*');
    if (!is_digit || !is_part) {
      result += name[i];
    } else if (result.empty() || result.back() != '*') {
      result += '*';
    }
  }
  return result;
}

// A set of texts that differ only in numbers.
struct Alike {
  std::string key;   // the text without numbers
  std::string text;  // of the first
  std::size_t count = 0;
};

template <class Items, class TextOf>
std::vector<Alike> alike(const Items& items, const TextOf& text_of_item) {
  std::vector<Alike> result;
  std::map<std::string, std::size_t> index_of;
  for (const auto& item : items) {
    const std::string key = text_of_item(item, without_numbers);
    const auto [found, is_new] = index_of.try_emplace(key, result.size());
    if (is_new)
      result.push_back({.key = key, .text = text_of_item(item, [](const std::string& name) { return name; })});
    ++result[found->second].count;
  }
  return result;
}

template <class Items, class TextOf>
std::string lines_of(const Items& items, const std::string& indent, const TextOf& text_of_item) {
  std::string text;
  for (const Alike& line : alike(items, text_of_item)) {
    text += cat(indent, line.count == 1 ? line.text : cat(line.key, "  (", line.count, " of these)"), "\n");
  }
  return text;
}

std::string tensors_text(const std::vector<TensorSource>& tensors, const std::string& indent) {
  return lines_of(tensors, indent, [](const TensorSource& tensor, const auto& shown) {
    if (tensor.dtype == at::ScalarType::Undefined) return cat(shown(tensor.name), "  of a dtype that is not built");
    return cat(shown(tensor.name), "  ", tensor.dtype, " ", at::IntArrayRef(tensor.shape), "  ",
               byte_size_text(num_bytes(tensor)));
  });
}

std::string names_text(const std::vector<std::string>& names) {
  return lines_of(names, "  ", [](const std::string& name, const auto& shown) { return shown(name); });
}

std::string groups_text(const std::vector<MappingReport::Group>& groups) {
  const auto text_of_group = [](const MappingReport::Group& group, const auto& shown) {
    const auto named = [&](std::vector<TensorSource> tensors) {
      for (TensorSource& tensor : tensors) tensor.name = shown(tensor.name);
      return tensors;
    };
    return cat(tensors_text(named(group.inputs), ""), tensors_text(named(group.outputs), "  -> "),
               group.has_function ? "  (a function of whole tensors)\n" : "");
  };
  std::string text;
  for (const Alike& group : alike(groups, text_of_group)) {
    text += group.count == 1 ? cat("\n", group.text) : cat("\n", group.count, " groups like\n", group.key);
  }
  return text;
}

}  // namespace

MappingReport report_mapping(const StateMapper& mapper, const NamedTensors& tensors) {
  MappingReport report;
  const std::set<std::string> present(tensors.names.begin(), tensors.names.end());
  std::set<std::string> made;
  for (const StateGroup& group : mapper.groups()) {
    if (std::ranges::includes(present, group.inputs)) made.insert(group.outputs.begin(), group.outputs.end());
  }
  for (const SourceGroup& source : source_groups(mapper, tensors, made)) {
    MappingReport::Group group{.has_function = !source.mapped.calls.empty()};
    for (const auto& [name, input] : source.inputs) group.inputs.push_back(input);
    for (const auto& [name, output] : source.mapped.outputs) {
      group.outputs.push_back({.name = name, .dtype = output.spec.dtype, .shape = output.spec.shape, .read = {}});
    }
    report.groups.push_back(std::move(group));
  }
  for (const std::string& name : unused_names(mapper, tensors.names)) report.unused.push_back(*tensors.find(name));
  for (const StateGroup& group : mapper.groups()) {
    if (std::ranges::includes(present, group.inputs)) continue;
    std::ranges::set_difference(group.inputs, present, std::back_inserter(report.missing));
    report.not_made.insert(report.not_made.end(), group.outputs.begin(), group.outputs.end());
  }
  std::ranges::sort(report.missing);
  std::ranges::sort(report.not_made);
  return report;
}

std::string text_of(const MappingReport& report) {
  std::size_t num_inputs = 0, num_outputs = 0;
  std::int64_t bytes_in = 0, bytes_out = 0;
  for (const MappingReport::Group& group : report.groups) {
    num_inputs += group.inputs.size();
    num_outputs += group.outputs.size();
    bytes_in += bytes_of(group.inputs);
    bytes_out += bytes_of(group.outputs);
  }
  std::string text =
      cat(counted(report.groups.size(), "group"), ": ", counted(num_inputs, "tensor"), " of ", byte_size_text(bytes_in),
          " -> ", counted(num_outputs, "tensor"), " of ", byte_size_text(bytes_out), "\n", groups_text(report.groups));
  if (!report.unused.empty()) {
    text += cat("\nunused: ", counted(report.unused.size(), "tensor"), "\n", tensors_text(report.unused, "  "));
  }
  if (!report.missing.empty()) {
    text += cat("\nmissing: ", counted(report.missing.size(), "tensor"), "\n", names_text(report.missing),
                "not made without them:\n", names_text(report.not_made));
  }
  return text;
}

}  // namespace d9d
