#include "d9d/models/huggingface/decoder_config.h"

#include <algorithm>
#include <cmath>

#include "d9d/base/check.h"

namespace d9d {
namespace {

constexpr double kDefaultRopeTheta = 10000.0;  // of transformers

void remove_nulls(nlohmann::json& object) {
  for (auto entry = object.begin(); entry != object.end();) {
    entry = entry->is_null() ? object.erase(entry) : std::next(entry);
  }
}

// Whether any layer attends within a window only. In a mixture of experts either all layers do, or none.
bool has_windows(const HuggingFaceDecoderConfig& config) {
  constexpr std::int64_t kDefaultMaxWindowLayers = 28;  // of transformers
  if (!config.use_sliding_window || !config.sliding_window) return false;
  if (config.model_type == "qwen3_moe") return true;
  if (config.layer_types)
    return std::ranges::find(*config.layer_types, "sliding_attention") != config.layer_types->end();
  return config.max_window_layers.value_or(kDefaultMaxWindowLayers) < config.num_hidden_layers;
}

}  // namespace

nlohmann::json with_defaults(nlohmann::json config, const nlohmann::json& defaults) {
  for (const auto& [key, value] : defaults.items()) {
    if (!config.contains(key) || config[key].is_null()) config[key] = value;
  }
  return config;
}

nlohmann::json default_head_dim(const nlohmann::json& config) {
  const nlohmann::json hidden = config.value("hidden_size", nlohmann::json());
  const nlohmann::json heads = config.value("num_attention_heads", nlohmann::json());
  if (!hidden.is_number_integer() || !heads.is_number_integer() || heads <= 0) return nullptr;
  return hidden.get<std::int64_t>() / heads.get<std::int64_t>();
}

ConfigPath huggingface_config_path() { return {.keys = {}, .source = "config.json"}; }

void check_key(bool is_buildable, const std::string& key, const std::string& expected, const std::string& found) {
  D9D_CHECK(is_buildable, ConfigError, huggingface_config_path() / key, "expected ", expected,
            " (nothing else is built), got ", found, ". Use a checkpoint of that kind.");
}

void check_model_type(const nlohmann::json& config, const std::string& model_type) {
  const nlohmann::json found = config.value("model_type", nlohmann::json());
  check_key(found == model_type, "model_type", model_type, found.is_string() ? found.get<std::string>() : found.dump());
}

void check_buildable(const HuggingFaceDecoderConfig& config) {
  check_key(config.hidden_act == "silu", "hidden_act", "silu", config.hidden_act);
  check_key(!config.attention_bias, "attention_bias", "false", "true");
  check_key(config.attention_dropout == 0, "attention_dropout", "0", cat(config.attention_dropout));
  check_key(!has_windows(config), "use_sliding_window", "false, or max_window_layers >= num_hidden_layers", "true");
  check_key(config.partial_rotary_factor == 1, "partial_rotary_factor", "1", cat(config.partial_rotary_factor));
  check_key(!config.quantization_config, "quantization_config", "none", "quantised weights");
  for (const std::string& type : config.layer_types.value_or(std::vector<std::string>{})) {
    check_key(type == "full_attention", "layer_types", "full_attention everywhere", type);
  }
}

Rope rope_from_huggingface(const HuggingFaceDecoderConfig& config) {
  // transformers takes rope_scaling if both are there, unless it is empty.
  const bool has_scaling = config.rope_scaling && !config.rope_scaling->empty();
  const std::string key = has_scaling || !config.rope_parameters ? "rope_scaling" : "rope_parameters";
  const nlohmann::json none = nlohmann::json::object();
  nlohmann::json rope = has_scaling ? *config.rope_scaling : config.rope_parameters.value_or(none);
  check_key(rope.is_object(), key, "an object", rope.dump());

  const nlohmann::json theta = rope.value("rope_theta", nlohmann::json(config.rope_theta.value_or(kDefaultRopeTheta)));
  constexpr double kMaxTheta = 1LL << 53;  // up to which a double has all integers
  const bool is_integer = theta.is_number() && std::floor(theta.get<double>()) == theta.get<double>() &&
                          theta.get<double>() >= 1 && theta.get<double>() <= kMaxTheta;
  check_key(is_integer, "rope_theta", "an integer from 1 to 2^53", theta.dump());
  const auto base = static_cast<std::int64_t>(theta.get<double>());

  const nlohmann::json type = rope.value("rope_type", rope.value("type", nlohmann::json("default")));
  if (type == "default") return {.base = base, .scaling = std::nullopt};
  for (const char* handled : {"rope_theta", "rope_type", "finetuned"}) rope.erase(handled);
  rope["type"] = type;
  if (type == "yarn") rope.emplace("truncate", true);  // the default of transformers
  if (type == "yarn" || type == "longrope" || type == "llama3") {
    constexpr const char* kOriginal = "original_max_position_embeddings";
    rope.emplace(kOriginal, config.max_position_embeddings);
    if (const auto& original = config.original_max_position_embeddings) rope[kOriginal] = *original;
  }
  return {.base = base, .scaling = parse_record<RopeScalingConfig>(rope, huggingface_config_path() / key)};
}

std::optional<nlohmann::json> rope_scaling_to_huggingface(const std::optional<RopeScalingConfig>& scaling) {
  if (!scaling) return std::nullopt;
  D9D_CHECK(!std::holds_alternative<NtkRopeScalingConfig>(*scaling), ConfigError,
            "[models::huggingface] expected a rope scaling that transformers has, got ntk. Export in our own format.");
  nlohmann::json rope = write_record(*scaling);
  rope["rope_type"] = rope.at("type");
  rope.erase("type");
  remove_nulls(rope);
  return rope;
}

nlohmann::json finish_config(const Json& record, const std::string& family, const std::optional<HeadConfig>& head,
                             Dtype dtype) {
  nlohmann::json config = record;
  remove_nulls(config);
  config["torch_dtype"] = enum_name(dtype);
  std::string task = "Model";
  if (head && std::holds_alternative<CausalLMHeadConfig>(*head)) task = "ForCausalLM";
  if (const auto* classification = head ? std::get_if<ClassificationHeadConfig>(&*head) : nullptr) {
    task = "ForSequenceClassification";
    for (std::int64_t label = 0; label < classification->num_labels; ++label) {  // transformers counts the labels
      const std::string name = cat("LABEL_", label);
      config["id2label"][std::to_string(label)] = name;
      config["label2id"][name] = label;
    }
  }
  config["architectures"] = {family + task};
  return config;
}

}  // namespace d9d
