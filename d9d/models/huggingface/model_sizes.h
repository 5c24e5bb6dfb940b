// Sizes of a model as a configuration gives them: written out, or those of the checkpoint that training starts from.
//
//   "model": {"layer": {...}, "num_hidden_layers": 28, ...}
//   "model": "from_checkpoint"
//
// Example
//   const auto sizes = resolve_model_sizes(config.model, source_checkpoint, qwen3_dense_parameters_from_huggingface,
//                                          {.keys = "model_provider.model"});
#pragma once

#include <filesystem>
#include <optional>
#include <string_view>

#include <nlohmann/json.hpp>

#include "d9d/base/config/describe.h"
#include "d9d/base/config/record_json.h"

namespace d9d {

template <class Parameters>
struct ModelSizes {
  std::optional<Parameters> written = {};  // null: "from_checkpoint"
};

// config.json of the checkpoint. ConfigError that names `path` when there is no checkpoint.
[[nodiscard]] nlohmann::json read_checkpoint_config(const std::optional<std::filesystem::path>& checkpoint,
                                                    const ConfigPath& path);

// Compares parameter records of decoders key by key; ConfigError that names the first key that differs, both values and
// the folder. Left out is what config.json does not decide: how many positions are used, how the vocabulary is split,
// which kernels run, how experts are balanced and how layers are spread over stages.
void check_model_sizes(const nlohmann::json& written, const nlohmann::json& published,
                       const std::filesystem::path& checkpoint, const ConfigPath& path);

// What the model is built with. Local; reads config.json of the checkpoint, if there is one. ConfigError where written
// sizes are not the checkpoint's.
template <class Parameters, class FromHuggingFace>
[[nodiscard]] Parameters resolve_model_sizes(const ModelSizes<Parameters>& sizes,
                                             const std::optional<std::filesystem::path>& checkpoint,
                                             const FromHuggingFace& parameters_from_huggingface,
                                             const ConfigPath& path) {
  if (sizes.written && !checkpoint) return *sizes.written;
  const Parameters published = parameters_from_huggingface(read_checkpoint_config(checkpoint, path));
  if (!sizes.written) return published;
  check_model_sizes(write_record(*sizes.written), write_record(published), *checkpoint, path);
  return *sizes.written;
}

namespace detail {

inline constexpr std::string_view kFromCheckpoint = "from_checkpoint";

// ConfigError for any other text.
void check_words_of_sizes(const nlohmann::json& json, const ConfigPath& path);

template <class Parameters>
struct TypeOf<ModelSizes<Parameters>> final : ValueType {
  void parse(const Json& json, const ConfigPath& path, const Range& range, void* target) const override {
    auto& sizes = as<ModelSizes<Parameters>>(target);
    sizes.written.reset();
    if (json == kFromCheckpoint) return;
    check_words_of_sizes(json, path);
    json_type<Parameters>().parse(json, path, range, &sizes.written.emplace());
  }
  [[nodiscard]] Json write(const void* value) const override {
    const auto& sizes = as<ModelSizes<Parameters>>(value);
    return sizes.written ? json_type<Parameters>().write(&*sizes.written) : Json(kFromCheckpoint);
  }
  [[nodiscard]] Json schema(const Range& range) const override {
    return {{"anyOf", Json::array({Json{{"const", kFromCheckpoint}}, json_type<Parameters>().schema(range)})}};
  }
};

}  // namespace detail

}  // namespace d9d
