// The keys of a Hugging Face config.json that define the structure of a decoder, as a record, and their
// conversion to this library's parameters. The other keys of transformers (token ids, initialisation, caches) do not
// affect the structure.
//
// Example
//   d9d::check_model_type(json, "qwen3");
//   const auto config = d9d::read_known_keys<d9d::HuggingFaceDecoderConfig>(json);
//   d9d::check_buildable(config);
//   auto parameters = d9d::decoder_parameters<d9d::Qwen3DenseParameters>(config);
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "d9d/base/config/record_json.h"
#include "d9d/base/dtype.h"
#include "d9d/base/record.h"
#include "d9d/blocks/head/head_config.h"
#include "d9d/blocks/positional/rope_scaling_config.h"
#include "d9d/models/huggingface/decoder_mapping.h"

namespace d9d {

// Fields that are not required have the same defaults as in transformers.
struct HuggingFaceDecoderConfig {
  std::string model_type = {};
  std::int64_t vocab_size = 1;
  std::int64_t hidden_size = 1;
  std::int64_t intermediate_size = 1;
  std::int64_t num_hidden_layers = 1;
  std::int64_t num_attention_heads = 1;
  std::int64_t num_key_value_heads = 1;
  std::int64_t head_dim = 2;
  std::int64_t max_position_embeddings = 1;
  double rms_norm_eps = 1e-6;
  bool tie_word_embeddings = false;
  std::optional<double> rope_theta = {};                              // published checkpoints; null: in rope_parameters
  std::optional<nlohmann::json> rope_scaling = {};                    // published checkpoints
  std::optional<nlohmann::json> rope_parameters = {};                 // transformers 5: both of the above
  std::optional<std::int64_t> original_max_position_embeddings = {};  // wins over that of the scaling
  std::string hidden_act = "silu";
  bool attention_bias = false;
  double attention_dropout = 0.0;
  bool use_sliding_window = false;
  std::optional<std::int64_t> sliding_window = 4096;  // null: no layer has a window
  // If layer_types does not say which layers have the window, all layers from this one on have it; null: 28.
  std::optional<std::int64_t> max_window_layers = {};
  double partial_rotary_factor = 1.0;
  std::optional<std::vector<std::string>> layer_types = {};
  std::optional<nlohmann::json> quantization_config = {};

  static constexpr auto fields() {
    using Config = HuggingFaceDecoderConfig;
    return record<Config>(
        required("model_type", &Config::model_type), required("vocab_size", &Config::vocab_size, at_least(1)),
        required("hidden_size", &Config::hidden_size, at_least(1)),
        required("intermediate_size", &Config::intermediate_size, at_least(1)),
        required("num_hidden_layers", &Config::num_hidden_layers, at_least(1)),
        required("num_attention_heads", &Config::num_attention_heads, at_least(1)),
        required("num_key_value_heads", &Config::num_key_value_heads, at_least(1)),
        required("head_dim", &Config::head_dim, at_least(2)),
        required("max_position_embeddings", &Config::max_position_embeddings, at_least(1)),
        required("rms_norm_eps", &Config::rms_norm_eps, greater_than(0)),
        defaulted("tie_word_embeddings", &Config::tie_word_embeddings), defaulted("rope_theta", &Config::rope_theta),
        defaulted("rope_scaling", &Config::rope_scaling), defaulted("rope_parameters", &Config::rope_parameters),
        defaulted("original_max_position_embeddings", &Config::original_max_position_embeddings, at_least(1)),
        defaulted("hidden_act", &Config::hidden_act), defaulted("attention_bias", &Config::attention_bias),
        defaulted("attention_dropout", &Config::attention_dropout),
        defaulted("use_sliding_window", &Config::use_sliding_window),
        defaulted("sliding_window", &Config::sliding_window),
        defaulted("max_window_layers", &Config::max_window_layers),
        defaulted("partial_rotary_factor", &Config::partial_rotary_factor),
        defaulted("layer_types", &Config::layer_types), defaulted("quantization_config", &Config::quantization_config));
  }
};

// The path that messages about a config.json begin with.
[[nodiscard]] ConfigPath huggingface_config_path();

// The config.json with the keys of `defaults` that it lacks or that are null.
[[nodiscard]] nlohmann::json with_defaults(nlohmann::json config, const nlohmann::json& defaults);

// hidden_size / num_attention_heads, the head_dim of a config.json without that key; null without these two.
[[nodiscard]] nlohmann::json default_head_dim(const nlohmann::json& config);

// Reads the keys that record T has and ignores the others. Throws ConfigError that names a missing key, a wrong type or
// a value out of range.
template <Record T>
[[nodiscard]] T read_known_keys(const nlohmann::json& config) {
  Json known = Json::object();
  for (const std::string_view key : record_type<T>().keys()) {
    if (const auto found = config.find(key); found != config.end()) known[std::string(key)] = *found;
  }
  return parse_record<T>(known, huggingface_config_path());
}

// Throws ConfigError unless this library supports the value of config.json's `key`.
void check_key(bool is_buildable, const std::string& key, const std::string& expected, const std::string& found);

// check_key for "model_type": before keys are read that other families lack.
void check_model_type(const nlohmann::json& config, const std::string& model_type);

// check_key for everything in the record.
void check_buildable(const HuggingFaceDecoderConfig& config);

// Base and scaling of the rotary embedding. Throws ConfigError for types and keys that this library lacks, and for a
// base that is not an integer. The key "finetuned" only says how a model was trained, and is ignored.
struct Rope {
  std::int64_t base;
  std::optional<RopeScalingConfig> scaling;
};
[[nodiscard]] Rope rope_from_huggingface(const HuggingFaceDecoderConfig& config);

// The value of "rope_scaling" in the form that published checkpoints have. Throws ConfigError for a scaling that
// transformers lacks.
[[nodiscard]] std::optional<nlohmann::json> rope_scaling_to_huggingface(
    const std::optional<RopeScalingConfig>& scaling);

// The record as a config.json without nulls, with architecture, dtype and labels; `family` begins the names of its
// classes: "Qwen3", "Llama".
[[nodiscard]] nlohmann::json finish_config(const Json& record, const std::string& family,
                                           const std::optional<HeadConfig>& head, Dtype dtype);

// The fields that parameter records of all families share. The vocabulary becomes one split, "regular".
template <class Parameters>
[[nodiscard]] Parameters decoder_parameters(const HuggingFaceDecoderConfig& config) {
  Rope rope = rope_from_huggingface(config);
  Parameters parameters;
  parameters.layer.hidden_size = config.hidden_size;
  parameters.layer.intermediate_size = config.intermediate_size;
  parameters.layer.num_attention_heads = config.num_attention_heads;
  parameters.layer.num_key_value_heads = config.num_key_value_heads;
  parameters.layer.rms_norm_eps = config.rms_norm_eps;
  parameters.layer.head_dim = config.head_dim;
  parameters.num_hidden_layers = config.num_hidden_layers;
  parameters.rope_base = rope.base;
  parameters.rope_scaling = std::move(rope.scaling);
  parameters.max_position_ids = config.max_position_embeddings;
  parameters.split_vocab_size = {{"regular", config.vocab_size}};
  parameters.split_vocab_order = {"regular"};
  parameters.tie_word_embeddings = config.tie_word_embeddings;
  return parameters;
}

// The parameters, after their rules across keys are checked. Throws ConfigError.
template <class Parameters>
[[nodiscard]] Parameters checked_parameters(Parameters parameters) {
  parameters.layer.validate(huggingface_config_path());
  parameters.validate(huggingface_config_path());
  return parameters;
}

// The reverse conversion. Throws ConfigError for a rope scaling that transformers lacks.
template <class Parameters>
[[nodiscard]] HuggingFaceDecoderConfig decoder_config(const Parameters& parameters, const std::string& model_type) {
  std::int64_t vocab_size = 0;
  for (const auto& [split, rows] : decoder_sizes(parameters).vocabulary) vocab_size += rows;
  return {.model_type = model_type,
          .vocab_size = vocab_size,
          .hidden_size = parameters.layer.hidden_size,
          .intermediate_size = parameters.layer.intermediate_size,
          .num_hidden_layers = parameters.num_hidden_layers,
          .num_attention_heads = parameters.layer.num_attention_heads,
          .num_key_value_heads = parameters.layer.num_key_value_heads,
          .head_dim = parameters.layer.head_dim,
          .max_position_embeddings = parameters.max_position_ids,
          .rms_norm_eps = parameters.layer.rms_norm_eps,
          .tie_word_embeddings = parameters.tie_word_embeddings,
          .rope_theta = static_cast<double>(parameters.rope_base),
          .rope_scaling = rope_scaling_to_huggingface(parameters.rope_scaling),
          .sliding_window = {}};
}

}  // namespace d9d
