// Sizes of a model as a configuration states them: written out, or taken from the checkpoint that training starts from.
//
//   "model": {"layer": {...}, "num_hidden_layers": 28, ...}
//   "model": "from_checkpoint"
//   "model": {"from_checkpoint": {"max_position_ids": 4096, "layer": {"sdpa_backend": "eager"}}}
//
// The last form changes values that config.json does not determine, see check_model_sizes().
//
// Example
//   const auto sizes = resolve_model_sizes(config.model, source_checkpoint, qwen3_dense_parameters_from_huggingface,
//                                          {.keys = "model_provider.model"});
#pragma once

#include <filesystem>
#include <optional>
#include <string_view>

#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/base/config/describe.h"
#include "d9d/base/config/record_json.h"
#include "d9d/core/error/error_place.h"

namespace d9d {

namespace detail {

inline constexpr std::string_view kFromCheckpoint = "from_checkpoint";

}  // namespace detail

template <class Parameters>
struct ModelSizes {
  std::optional<Parameters> written = {};             // null: "from_checkpoint"
  nlohmann::json changes = nlohmann::json::object();  // to the checkpoint's sizes: a part of Parameters
};

// config.json of the checkpoint. ConfigError that names `path` when there is no checkpoint.
[[nodiscard]] nlohmann::json read_checkpoint_config(const std::optional<std::filesystem::path>& checkpoint,
                                                    const ConfigPath& path);

// Compares parameter records of decoders key by key; ConfigError that names the first key that differs, both values and
// the file. Values that config.json does not determine are not compared: how many positions are used, how the
// vocabulary is split, which kernels run, how experts are balanced and how layers are distributed over stages.
void check_model_sizes(const nlohmann::json& written, const nlohmann::json& published,
                       const std::filesystem::path& file, const ConfigPath& path);

// Local. The sizes that the model is built with. published: the sizes in the checkpoint's `file`. Throws ConfigError if
// written sizes differ from them.
template <class Parameters>
[[nodiscard]] Parameters resolve_model_sizes(const ModelSizes<Parameters>& sizes, const Parameters& published,
                                             const std::filesystem::path& file, const ConfigPath& path) {
  const nlohmann::json there = write_record(published);
  nlohmann::json chosen = sizes.written ? nlohmann::json(write_record(*sizes.written)) : there;
  const ConfigPath where = sizes.written || sizes.changes.empty() ? path : path / detail::kFromCheckpoint;
  chosen.merge_patch(sizes.changes);
  const auto parameters = parse_record<Parameters>(chosen, where);
  check_model_sizes(write_record(parameters), there, file, where);
  return parameters;
}

// The same for a checkpoint of Hugging Face; reads its config.json, if there is one.
template <class Parameters, class FromHuggingFace>
[[nodiscard]] Parameters resolve_model_sizes(const ModelSizes<Parameters>& sizes,
                                             const std::optional<std::filesystem::path>& checkpoint,
                                             const FromHuggingFace& parameters_from_huggingface,
                                             const ConfigPath& path) {
  if (sizes.written && !checkpoint) return *sizes.written;
  const nlohmann::json config = read_checkpoint_config(checkpoint, path);
  const Parameters published =
      with_error_place(cat("in ", checkpoint->string()), [&] { return parameters_from_huggingface(config); });
  return resolve_model_sizes(sizes, published, *checkpoint / "config.json", path);
}

namespace detail {

// Whether it is {"from_checkpoint": {...}}. ConfigError if it has that key and is not of this form.
[[nodiscard]] bool has_changes(const nlohmann::json& json, const ConfigPath& path);
// ConfigError for any other text.
void check_words_of_sizes(const nlohmann::json& json, const ConfigPath& path);

template <class Parameters>
struct TypeOf<ModelSizes<Parameters>> final : ValueType {
  void parse(const Json& json, const ConfigPath& path, const Range& range, void* target) const override {
    auto& sizes = as<ModelSizes<Parameters>>(target);
    sizes = {};
    if (json == kFromCheckpoint) return;
    if (has_changes(json, path)) {
      sizes.changes = json[kFromCheckpoint];
      return;
    }
    check_words_of_sizes(json, path);
    json_type<Parameters>().parse(json, path, range, &sizes.written.emplace());
  }
  [[nodiscard]] Json write(const void* value) const override {
    const auto& sizes = as<ModelSizes<Parameters>>(value);
    if (sizes.written) return json_type<Parameters>().write(&*sizes.written);
    return sizes.changes.empty() ? Json(kFromCheckpoint) : Json{{kFromCheckpoint, sizes.changes}};
  }
  [[nodiscard]] Json schema(const Range& range) const override {
    const Json changed = {{"type", "object"}, {"required", Json::array({kFromCheckpoint})}, {"maxProperties", 1}};
    return {{"anyOf", Json::array({Json{{"const", kFromCheckpoint}}, changed, json_type<Parameters>().schema(range)})}};
  }
};

}  // namespace detail

}  // namespace d9d
