#include "tools/convert/conversion.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/base/config/json_depth.h"
#include "d9d/core/dtype/scalar_type.h"
#include "d9d/model_state/mapper/compose.h"
#include "d9d/model_state/mapper/leaves.h"

#include "tools/convert/families.h"

namespace d9d::convert {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

// The mapper for names as they are behind `rename`, of the folder's own names. Names that it does not take stay unused.
StateMapper behind_renaming(const StateMapper& mapper, const Names& names,
                            const std::function<std::string(const std::string&)>& rename) {
  const std::set<std::string> wanted = mapper.inputs();
  std::vector<StateMapper> renames;
  std::set<std::string> all_renamed;
  for (const std::string& name : names) all_renamed.insert(rename(name));
  for (const std::string& name : names) {
    const std::string renamed = rename(name);
    D9D_CHECK(!wanted.contains(name) || all_renamed.contains(name), UsageError, "[convert] expected '", name,
              "', which the model needs, got it renamed to '", renamed, "'. Change --rename.");
    if (renamed != name && wanted.contains(renamed)) renames.push_back(mapper::rename(name, renamed));
  }
  const StateMapper all = mapper::parallel(std::move(renames));
  return all.groups().empty() ? mapper : mapper::sequential({all, mapper});
}

std::function<std::string(const std::string&)> renaming(const Options& options) {
  std::vector<std::function<std::string(const std::string&)>> steps;
  for (const std::string& text : options.rename) {
    const auto [pattern, replacement] = parse_rename(text);
    steps.push_back([pattern = pattern, replacement = replacement](const std::string& name) {
      return *mapper::rename_matching({name}, pattern, replacement).outputs().begin();
    });
  }
  return [steps](const std::string& name) {
    std::string renamed = name;
    for (const auto& step : steps) renamed = step(renamed);
    return renamed;
  };
}

// The files of the source, with what the conversion changes in config.json.
std::map<std::string, std::string> files_of_target(const Options& options, const Source& source) {
  std::map<std::string, std::string> files = source.files;
  const auto config = files.find("config.json");
  if (config == files.end()) return files;
  if (options.dtype || source.has_untied_head) {
    auto json = nlohmann::ordered_json::parse(config->second, nullptr, /*allow_exceptions=*/false);
    D9D_CHECK(json.is_object() && json_depth(config->second) <= kMaxJsonDepth, IoError,
              "[convert] expected a JSON object in '", (options.source / "config.json").string(),
              "' to write --dtype into, got something else. Mend it.");
    for (const char* const key : {"torch_dtype", "dtype"}) {
      if (options.dtype && json.contains(key)) json[key] = enum_name(*options.dtype);
    }
    if (source.has_untied_head) json["tie_word_embeddings"] = false;  // which names of its own do not show
    config->second = json.dump(2) + "\n";
  }
  return files;
}

StateMapper mapper_of(const Options& options, const Source& source) {
  const auto rename = renaming(options);
  const Names& names = source.tensors.names;
  Names renamed;
  for (const std::string& name : names) renamed.push_back(rename(name));
  if (!options.to && !options.experts && !options.qkv) {
    D9D_CHECK(options.vocabulary.empty(), UsageError,
              "[convert] expected --to with --vocabulary, got none. See --help.");
    std::vector<StateMapper> renames;
    for (std::size_t i = 0; i < names.size(); ++i) renames.push_back(mapper::rename(names[i], renamed[i]));
    return mapper::parallel(std::move(renames));
  }
  const StateMapper known = family_mapper(
      options, source.read_config(), renamed,
      [&](const std::string& name) {
        const auto found = std::ranges::find(renamed, name);
        return source.tensors.find(names[static_cast<std::size_t>(found - renamed.begin())])->shape;
      },
      source.head);
  return behind_renaming(known, names, rename);
}

void check_goes_with_peft(const Options& options) {
  D9D_CHECK(!options.experts && !options.qkv && options.rename.empty(), UsageError,
            "[convert] expected --adapters peft without --experts, --qkv and --rename, got one of them: the names of "
            "adapters are fixed. Leave it out.");
}

void check_has_frozen(const Options& options, const Source& source) {
  for (const AdaptedModule& module : source.adapted->modules) {
    const std::string& weight = module.weights[0].stored;
    D9D_CHECK(source.tensors.find(weight), UsageError, "[convert] expected frozen weights in '",
              options.source.string(), "' to merge adapters into, got none for ", weight,
              ": its job saves what it trains alone. Write --adapters peft, or let the job export.");
  }
}

}  // namespace

ModelExport plan_conversion(const Options& options, const Source& source) {
  const bool is_peft = source.adapted && options.adapters == ExportedAdapters::kPeft;
  if (is_peft) check_goes_with_peft(options);
  if (source.adapted && !is_peft) check_has_frozen(options, source);
  ModelExport exported{.mapper = is_peft ? source.published.value() : mapper_of(options, source),
                       .files = files_of_target(options, source)};
  if (source.adapted) {
    return export_of_adapted(options.adapters.value(), *source.adapted, exported, options.dtype.value(), source.base);
  }
  if (options.dtype) exported.mapper = mapper::in_dtype(exported.mapper, to_scalar_type(*options.dtype));
  return exported;
}

}  // namespace d9d::convert
