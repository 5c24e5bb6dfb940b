#include "d9d/loop/config/aliases.h"

#include <span>
#include <string_view>
#include <utility>

#include "d9d/base/check.h"
#include "d9d/base/config/config_path.h"
#include "d9d/base/config/name_list.h"
#include "d9d/base/config/read_scalar.h"

namespace d9d {
namespace {

using Notes = std::vector<std::string>;

// Returns the object under `key`; null if the key is missing or its value is no object.
Json* find_object(Json& parent, std::string_view key) {
  if (!parent.is_object()) return nullptr;
  const auto at = parent.find(key);
  return at != parent.end() && at->is_object() ? &*at : nullptr;
}

// Moves source[key] to target[new_key]. `from` and `to` are the paths of the two objects, for messages. The caller
// discards `source` afterwards.
void move_value(Json& source, const ConfigPath& from, std::string_view key, Json& target, const ConfigPath& to,
                std::string_view new_key) {
  const auto at = source.find(key);
  if (at == source.end()) return;
  const auto existing = target.find(new_key);
  D9D_CHECK(existing == target.end() || *existing == *at, ConfigError, config_source(from), "expected '",
            (from / key).keys, "' and '", (to / new_key).keys, "', which are the same setting, to be equal, got ",
            json_excerpt(*at), " and ", existing == target.end() ? "" : json_excerpt(*existing), ". Remove the first.");
  target[std::string(new_key)] = std::move(*at);
  source.erase(std::string(key));
}

void check_empty(const Json& section, const ConfigPath& path, std::span<const std::string_view> known) {
  if (section.empty()) return;
  const std::string& key = section.begin().key();
  throw ConfigError(cat(config_source(path), "unknown key '", (path / key).keys, "'.", did_you_mean(key, known)));
}

// Moves the keys of a section of `job`, such as trainer.batching, to the record `data`.
void move_section_to_data(Json& config, const ConfigPath& root, std::string_view job, std::string_view section,
                          std::span<const std::string_view> keys, Notes& notes) {
  Json* parent = find_object(config, job);
  Json* values = parent == nullptr ? nullptr : find_object(*parent, section);
  if (values == nullptr) return;
  const ConfigPath from = root / job / section;
  Json moved = std::move(*values);
  parent->erase(std::string(section));
  Json& data = config["data"];  // may reallocate the root's members: `parent` and `values` are invalid from here on
  if (data.is_null()) data = Json::object();
  D9D_CHECK(data.is_object(), ConfigError, root / "data", "expected an object, got ", json_excerpt(data),
            ". Write it as {\"key\": value}.");
  for (const auto key : keys) move_value(moved, from, key, data, root / "data", key);
  check_empty(moved, from, keys);
  notes.push_back(cat(from.keys, " is a section of d9d 0.16: its keys are read as keys of data."));
}

void replace_profiling_enabled(Json& config, const ConfigPath& root, std::string_view job, Notes& notes) {
  Json* parent = find_object(config, job);
  Json* profiling = parent == nullptr ? nullptr : find_object(*parent, "profiling");
  if (profiling == nullptr || !profiling->contains("enabled")) return;
  const ConfigPath path = root / job / "profiling" / "enabled";
  const bool is_enabled = read_boolean((*profiling)["enabled"], path);
  if (is_enabled) {
    profiling->erase("enabled");
  } else {
    *profiling = nullptr;
  }
  notes.push_back(cat(path.keys, " is a key of d9d 0.16: the section is ", is_enabled ? "on." : "off, as if null."));
}

// Turns the keys beside model_provider.model.model into the record model_provider.head.
void move_head(Json& siblings, const ConfigPath& from, Json& provider, const ConfigPath& provider_path) {
  if (siblings.empty()) return;
  Json head = Json::object();
  const ConfigPath to = provider_path / "head";
  if (siblings.contains("num_labels") || siblings.contains("classifier_dropout")) {
    head["kind"] = "classification";
    move_value(siblings, from, "num_labels", head, to, "num_labels");
    move_value(siblings, from, "classifier_dropout", head, to, "dropout");
  } else if (siblings.contains("embedding_dim") || siblings.contains("normalize")) {
    head["kind"] = "embedding";
    move_value(siblings, from, "embedding_dim", head, to, "embedding_dim");
    move_value(siblings, from, "normalize", head, to, "normalize");
  }
  constexpr std::string_view kSiblings[] = {"model", "num_labels", "classifier_dropout", "embedding_dim", "normalize"};
  check_empty(siblings, from, kSiblings);
  Json wrapped = {{"head", std::move(head)}};
  move_value(wrapped, from, "head", provider, provider_path, "head");
}

void unwrap_model(Json& config, const ConfigPath& root, Notes& notes) {
  Json* provider = find_object(config, "model_provider");
  Json* outer = provider == nullptr ? nullptr : find_object(*provider, "model");
  if (outer == nullptr || find_object(*outer, "model") == nullptr) return;
  const ConfigPath provider_path = root / "model_provider";
  Json siblings = std::move(*outer);
  Json inner = std::move(siblings["model"]);
  siblings.erase("model");
  *outer = std::move(inner);
  move_head(siblings, provider_path / "model", *provider, provider_path);
  notes.push_back("model_provider.model.model is a key of d9d 0.16: read as model_provider.model.");
  if (provider->contains("dtype")) return;
  (*provider)["dtype"] = "bfloat16";
  notes.push_back("model_provider.dtype is no key of d9d 0.16, whose examples train in bfloat16: bfloat16.");
}

}  // namespace

std::vector<std::string> apply_0_16_aliases(Json& config, const ConfigPath& root) {
  constexpr std::string_view kBatching[] = {"global_batch_size", "microbatch_size"};
  constexpr std::string_view kDataLoading[] = {"num_workers", "pin_memory", "persistent_workers"};
  Notes notes;
  if (!config.is_object()) return notes;
  for (const std::string_view job : {"trainer", "inference"}) {
    move_section_to_data(config, root, job, "batching", kBatching, notes);
    move_section_to_data(config, root, job, "data_loading", kDataLoading, notes);
    replace_profiling_enabled(config, root, job, notes);
  }
  unwrap_model(config, root, notes);
  return notes;
}

}  // namespace d9d
