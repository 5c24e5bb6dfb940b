#include "d9d/peft/peft_folder.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/base/config/json_depth.h"
#include "d9d/base/io/input_file.h"
#include "d9d/base/name_regex.h"
#include "d9d/model_state/io/safetensors.h"
#include "d9d/peft/peft_export.h"

namespace d9d {
namespace {

namespace fs = std::filesystem;
using json = nlohmann::ordered_json;  // peft takes the first pattern that matches
using Names = std::vector<std::string>;
using Patterns = std::vector<std::pair<NameRegex, double>>;

constexpr std::string_view kBase = ".base_layer.weight";

json read_config(const fs::path& path) {
  const std::string text = text_of_file(path);
  json config = json_depth(text) <= kMaxJsonDepth ? json::parse(text, nullptr, /*allow_exceptions=*/false) : json();
  D9D_CHECK(config.is_object(), IoError, "[peft] expected a JSON object in '", path.string(),
            "', got something else. The file is damaged; write or download it again.");
  return config;
}

template <class T>
bool has_type(const json& value) {
  // nlohmann cuts off fractions, and bits of what an int64 does not hold.
  if constexpr (std::is_same_v<T, std::int64_t>)
    return value.is_number_integer() && std::abs(value.get<double>()) < 1e15;
  if constexpr (std::is_same_v<T, double>) return value.is_number();
  if constexpr (std::is_same_v<T, json>) return value.is_object();
  return true;
}

// key: in the message.
template <class T>
T as(const json& value, const std::string& key, const fs::path& file) {
  try {
    if (has_type<T>(value)) return value.get<T>();
  } catch (const json::exception&) {
  }
  throw ConfigError(cat("[peft] expected another type for ", key, " in '", file.string(), "', got ", value.dump(),
                        ". Write or download the file again."));
}

template <class T>
T value_of(const json& config, const char* key, const T& otherwise, const fs::path& file) {
  const auto found = config.find(key);
  return found == config.end() || found->is_null() ? otherwise : as<T>(*found, key, file);
}

// A rank or an alpha.
template <class T>
T positive(T value, const std::string& key, const fs::path& file) {
  D9D_CHECK(value > 0, ConfigError, "[peft] expected ", key, " > 0 in '", file.string(), "', got ", value,
            ". Train the adapters with one.");
  return value;
}

// T: of the values.
template <class T>
Patterns patterns_of(const json& config, const char* key, const fs::path& file) {
  const json values = value_of(config, key, json::object(), file);
  Patterns patterns;
  for (const auto& [name, value] : values.items()) {
    const std::string place = cat(key, " of '", name, "'");
    patterns.emplace_back(
        NameRegex("(.*\\.)?(" + name + ")", cat("[peft] ", key, " in '", file.string(), "': "), "of names of modules"),
        static_cast<double>(positive(as<T>(value, place, file), place, file)));
  }
  return patterns;
}

void check_is_lora(const json& config, const fs::path& file) {
  D9D_CHECK(config.value("peft_type", json()) == "LORA", ConfigError, "[peft] expected peft_type LORA in '",
            file.string(), "', got ", config.value("peft_type", json()).dump(), ". Other adapters are not built.");
  for (const char* const key :
       {"lora_bias", "use_qalora", "fan_in_fan_out", "layer_replication", "trainable_token_indices",
        "alora_invocation_tokens", "use_bdlora", "arrow_config", "kasa_config", "monteclora_config"}) {
    const json value = config.value(key, json());
    D9D_CHECK(value.is_null() || value == false, ConfigError, "[peft] expected LoRA without ", key, " in '",
              file.string(), "', got ", value.dump(),
              ", which is not built in this version. Train the adapters without it.");
  }
  D9D_CHECK(config.value("bias", json("none")) == "none", ConfigError, "[peft] expected bias none in '", file.string(),
            "', got ", config["bias"].dump(), ", which is not built in this version. Train the adapters without it.");
  // Initial values that peft takes out of the base, which is then another one.
  const json init = config.value("init_lora_weights", json());
  const std::string kind = init.is_string() ? init.get<std::string>() : "";
  const bool changes_base = std::ranges::any_of(std::array{"pissa", "corda", "olora", "loftq", "lora_ga"},
                                                [&](const char* each) { return kind.starts_with(each); });
  D9D_CHECK(!changes_base, ConfigError, "[peft] expected adapters of the published weights in '", file.string(),
            "', got those of others, which init_lora_weights ", kind,
            " makes. Save them in Python with path_initial_model_for_weight_conversion.");
}

// The value of the first expression that matches.
double matching(const Patterns& values, const std::string& name, double otherwise) {
  for (const auto& [expression, value] : values) {
    if (expression.matches(name)) return value;
  }
  return otherwise;
}

}  // namespace

PeftFolder::PeftFolder(const fs::path& path) : path_(path.string()) {
  const fs::path file = path / kPeftConfig, weights = path / kPeftWeights;
  const json config = read_config(file);
  check_is_lora(config, file);
  constexpr int kDefault = 8;  // of peft
  params_ = {.r = positive(value_of<std::int64_t>(config, "r", kDefault, file), "r", file),
             .alpha = positive(value_of<double>(config, "lora_alpha", kDefault, file), "lora_alpha", file),
             .use_rslora = value_of(config, "use_rslora", false, file)};
  has_magnitudes_ = value_of(config, "use_dora", false, file);
  if (config.value("base_model_name_or_path", json()).is_string()) base_ = config["base_model_name_or_path"];
  ranks_ = patterns_of<std::int64_t>(config, "rank_pattern", file);
  alphas_ = patterns_of<double>(config, "alpha_pattern", file);
  for (const std::string& name : value_of<Names>(config, "target_parameters", {}, file)) {
    parameters_.insert(name.substr(name.rfind('.') + 1));
  }
  std::error_code error;
  D9D_CHECK(fs::exists(weights, error), IoError, "[peft] expected adapters in '", weights.string(),
            "', got no such file. Write them as safetensors: in Python, model.save_pretrained(FOLDER).");
  const SafetensorsFile opened(weights);
  std::map<std::string, TensorSource> sources;
  for (const auto& [name, entry] : opened.entries()) {
    if (name.ends_with(kBase)) continue;
    tensors_.names.push_back(name);
    sources.emplace(name, tensor_source(name, opened.tensor(name))).first->second.origin = weights.string();
  }
  tensors_.find = [sources = std::move(sources)](const std::string& name) {
    const auto found = sources.find(name);
    return found == sources.end() ? std::nullopt : std::optional(found->second);
  };
}

LoraParams PeftFolder::params_of(const std::string& module) const {
  LoraParams params = params_;
  params.r = static_cast<std::int64_t>(matching(ranks_, module, static_cast<double>(params.r)));
  params.alpha = matching(alphas_, module, params.alpha);
  return params;
}

}  // namespace d9d
