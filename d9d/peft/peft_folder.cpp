#include "d9d/peft/peft_folder.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <optional>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/base/config/json_depth.h"
#include "d9d/base/io/input_file.h"
#include "d9d/base/name_regex.h"
#include "d9d/model_state/io/safetensors.h"
#include "d9d/model_state/mapper/compose.h"
#include "d9d/model_state/mapper/leaves.h"
#include "d9d/peft/peft_export.h"
#include "d9d/peft/published_names.h"

namespace d9d {
namespace {

namespace fs = std::filesystem;
using json = nlohmann::ordered_json;  // peft takes the first pattern that matches
using Names = std::vector<std::string>;
using Tensors = std::vector<at::Tensor>;
using Patterns = std::vector<std::pair<std::string, double>>;

constexpr std::string_view kBase = ".base_layer.weight";
constexpr double kScaleTolerance = 1e-12;  // of a product and a division in float64

json read_config(const fs::path& path) {
  const std::string text = text_of_file(path);
  json config = json_depth(text) <= kMaxJsonDepth ? json::parse(text, nullptr, /*allow_exceptions=*/false) : json();
  D9D_CHECK(config.is_object(), IoError, "[peft] expected a JSON object in '", path.string(),
            "', got something else. The file is damaged; write or download it again.");
  return config;
}

template <class T>
T value_of(const json& config, const char* key, const T& otherwise, const fs::path& file) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) return otherwise;
  const auto refuse = [&] {
    throw ConfigError(cat("[peft] expected another type for ", key, " in '", file.string(), "', got ", found->dump(),
                          ". Write or download the file again."));
  };
  if constexpr (std::is_same_v<T, std::int64_t>) {
    if (!found->is_number_integer()) refuse();  // nlohmann cuts fractions off
  }
  if constexpr (std::is_same_v<T, json>) {
    if (found->type() != otherwise.type()) refuse();
  }
  try {
    return found->get<T>();
  } catch (const json::exception&) {
    refuse();
  }
  return otherwise;
}

// T: of the values.
template <class T>
Patterns patterns_of(const json& config, const char* key, const fs::path& file) {
  const json values = value_of(config, key, json::object(), file);
  Patterns patterns;
  for (const auto& [name, value] : values.items()) {
    patterns.emplace_back(name, static_cast<double>(value_of(values, name.c_str(), T{}, file)));
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

// The value of the first expression that matches the end of the name.
double matching(const Patterns& values, const std::string& name, double otherwise) {
  for (const auto& [expression, value] : values) {
    if (NameRegex("(.*\\.)?(" + expression + ")", "[peft] ", "of names of modules").matches(name)) return value;
  }
  return otherwise;
}

// Experts whose adapters peft has joined, as it does for the joined parameters of transformers 5. A [E * rank, in] with
// row e * rank + k, and B [out, rank * E] with column k * E + e.
at::Tensor experts_of_a(const at::Tensor& a, std::int64_t num_experts) {
  return a.unflatten(0, {num_experts, -1}).transpose(1, 2);  // [E, in, rank]
}
at::Tensor experts_of_b(const at::Tensor& b, std::int64_t num_experts) {
  return b.unflatten(1, {-1, num_experts}).permute({2, 1, 0});  // [E, rank, out]
}

void check_joined(const Tensors& joined, std::int64_t num_experts) {
  const at::IntArrayRef a = joined[0].sizes(), b = joined[1].sizes();
  D9D_CHECK(a.size() == 2 && b.size() == 2 && a[0] == b[1] && a[0] % num_experts == 0, ConfigError,
            "[peft] expected joined adapters A [", num_experts,
            " experts * rank, in] and B [out, rank * experts], got ", a, " and ", b,
            ". Check that adapters and model belong together.");
}

// A and B of one matrix, and of gate and up.
Tensors split_one(const Tensors& joined, std::int64_t num_experts) {
  check_joined(joined, num_experts);
  return {experts_of_a(joined[0], num_experts), experts_of_b(joined[1], num_experts)};
}
Tensors split_gate_and_up(const Tensors& joined, std::int64_t num_experts, std::int64_t rank) {
  check_joined(joined, num_experts);
  const at::Tensor a = experts_of_a(joined[0], num_experts), b = experts_of_b(joined[1], num_experts);
  const Tensors of = b.chunk(2, 2);  // what gate adds, and what up adds
  if (a.size(2) == rank) return {a, of[0], a, of[1]};
  const Tensors features = a.chunk(2, 2), gate = of[0].chunk(2, 1), up = of[1].chunk(2, 1);
  const bool are_apart = b.is_meta() || (gate[1].count_nonzero().item<std::int64_t>() == 0 &&
                                         up[0].count_nonzero().item<std::int64_t>() == 0);
  D9D_CHECK(a.size(2) == 2 * rank && are_apart, ConfigError,
            "[peft] expected joined adapters of the experts' gate and up of rank ", rank, ", or of rank ", 2 * rank,
            " where each has half of it, got rank ", a.size(2), are_apart ? "" : ", all of which both use",
            ". Give them that rank and the scale that it has there.");
  return {features[0], gate[0], features[1], up[1]};
}

std::int64_t num_experts_of(const AdaptedModule& experts) { return experts.weights[0].shape[0]; }

class Reader {
 public:
  Reader(const StateMapper& exported, const PeftFolder& folder)
      : names_(exported), folder_(folder), present_(folder.tensors().names.begin(), folder.tensors().names.end()) {}

  StateMapper operator()(const AdaptedModel& model) {
    for (const AdaptedModule& module : model.modules) add(module);
    for (const auto& [place, joined] : joined_) add_joined(place, joined);
    for (const TunedParameter& parameter : model.tuned) add_tuned(parameter);
    check_all();
    return mapper::parallel(mappers_);
  }

 private:
  struct Joined {
    std::map<std::string, AdaptedModule> linears;  // by gate_proj, up_proj, down_proj
  };

  void add(const AdaptedModule& adapted) {
    const Names modules = names_.modules_of(adapted);
    if (adapted.is_experts() && !present_.contains(peft_name(modules[0], "lora_A"))) {
      const std::size_t leaf = modules[0].rfind('.'), expert = modules[0].rfind('.', leaf - 1);
      joined_[modules[0].substr(0, expert)].linears.emplace(modules[0].substr(leaf + 1), adapted);
      return;
    }
    for (const std::string& module : modules) check_params(adapted, adapted.rank, module);
    for (const auto& [factors, part] : {std::pair{adapted.a, "lora_A"}, std::pair{adapted.b, "lora_B"}}) {
      Names sources;
      for (const std::string& module : modules) sources.push_back(peft_name(module, part, adapted.product));
      take(sources);
      if (adapted.is_experts()) {
        mappers_.push_back(
            mapper::sequential({mapper::stack(sources, factors[0], 0), mapper::transpose(factors[0], 1, 2)}));
      } else if (adapted.product == LowRankProduct::kTable && factors == adapted.a) {
        mappers_.push_back(
            mapper::sequential({mapper::transpose(sources[0], 0, 1), split_rows(sources[0], factors, adapted)}));
      } else {
        mappers_.push_back(split_rows(sources[0], factors, adapted));
      }
    }
    if (adapted.has_magnitude()) {
      take({peft_magnitude_name(modules[0])});
      mappers_.push_back(mapper::rename(peft_magnitude_name(modules[0]), adapted.magnitude));
    }
  }

  // A factor for all weights as one for each, if the adapter has it so.
  static StateMapper split_rows(const std::string& source, const Names& factors, const AdaptedModule& adapted) {
    if (factors.size() == 1) return mapper::rename(source, factors[0]);
    std::vector<std::pair<std::string, std::int64_t>> rows;
    for (std::size_t i = 0; i < factors.size(); ++i) rows.emplace_back(factors[i], adapted.weights[i].shape[0]);
    return mapper::split(source, rows, 0);
  }

  // experts: the name of the module that has gate_up_proj and down_proj as parameters.
  void add_joined(const std::string& experts, const Joined& joined) {
    const std::string inner = experts + ".base_layer";  // of the first of two parameters with adapters
    const bool has_both = present_.contains(peft_name(inner, "lora_A"));
    const auto& linears = joined.linears;
    const auto find = [&](const char* leaf) { return linears.contains(leaf) ? &linears.at(leaf) : nullptr; };
    const AdaptedModule *const gate = find("gate_proj"), *const up = find("up_proj"), *const down = find("down_proj");
    const bool has_gate_up = has_both || folder_.targets_parameter("gate_up_proj");
    if (has_gate_up && gate != nullptr && up != nullptr) {
      const Names sources = parts_of(has_both ? inner : experts);
      const std::int64_t num_experts = num_experts_of(*gate), rank = gate->rank;
      check_params(*gate, std::nullopt, experts + ".gate_up_proj");
      check_params(*up, std::nullopt, experts + ".gate_up_proj");
      mappers_.push_back(
          mapper::function("split", sources, {gate->a[0], gate->b[0], up->a[0], up->b[0]},
                           [=](const Tensors& tensors) { return split_gate_and_up(tensors, num_experts, rank); }));
    } else if (gate != nullptr || up != nullptr) {
      missing_.insert(peft_name(experts + ".0." + (gate != nullptr ? "gate_proj" : "up_proj"), "lora_A"));
    }
    if (down != nullptr && (has_both || !has_gate_up)) {
      check_params(*down, down->rank, experts + ".down_proj");
      mappers_.push_back(mapper::function(
          "split", parts_of(experts), {down->a[0], down->b[0]},
          [num_experts = num_experts_of(*down)](const Tensors& tensors) { return split_one(tensors, num_experts); }));
    } else if (down != nullptr) {
      missing_.insert(peft_name(experts + ".0.down_proj", "lora_A"));
    }
  }

  void add_tuned(const TunedParameter& parameter) {
    if (!can_be_saved_whole(parameter)) return;
    const std::string source = "base_model.model." + names_.name_of(parameter.name, parameter.shape);
    if (!present_.contains(source)) return;  // as the base has it
    take({source});
    mappers_.push_back(mapper::rename(source, parameter.name));
  }

  Names parts_of(const std::string& module) {
    Names sources = {peft_name(module, "lora_A"), peft_name(module, "lora_B")};
    take(sources);
    return sources;
  }

  void take(const Names& sources) {
    for (const std::string& source : sources) (present_.contains(source) ? used_ : missing_).insert(source);
  }

  // rank: none where adapters of several linears are joined.
  void check_params(const AdaptedModule& adapted, std::optional<std::int64_t> rank, const std::string& module) const {
    D9D_CHECK(adapted.has_magnitude() == folder_.has_magnitudes(), ConfigError, "[peft] expected the adapter of '",
              adapted.name, "' by ", adapted.has_magnitude() ? "dora" : "lora",
              " as model_provider.adapters says, got use_dora = ", folder_.has_magnitudes(), " in '", folder_.path(),
              "'. Write the kind that it is there.");
    const LoraParams params = folder_.params_of(module);
    const bool is_same_scale = std::abs(params.scale() - adapted.scale) <= kScaleTolerance * adapted.scale;
    D9D_CHECK((!rank || params.r == *rank) && is_same_scale, ConfigError, "[peft] expected the adapter of '",
              adapted.name, "' to have rank ", adapted.rank, " and scale ", adapted.scale,
              " as model_provider.adapters says, got rank ", params.r, " and scale ", params.scale(), " in '",
              folder_.path(), "', where alpha is ", params.alpha, ". Write r, alpha and use_rslora as they are there.");
  }

  void check_all() const {
    D9D_CHECK(missing_.empty(), ConfigError, "[peft] expected '", folder_.path(),
              "' to have an adapter for each module that model_provider.adapters matches, got ", missing_.size(),
              " tensors missing, the first '", *missing_.begin(), "'. Narrow module_name_pattern.");
    const auto unused = std::ranges::find_if(present_, [&](const std::string& name) { return !used_.contains(name); });
    D9D_CHECK(unused == present_.end(), ConfigError,
              "[peft] expected model_provider.adapters to match what has adapters in '", folder_.path(), "', got '",
              *unused, "' there, and none or no trained weight of it here. Widen module_name_pattern.");
  }

  const PublishedNames names_;
  const PeftFolder& folder_;
  const std::set<std::string> present_;
  std::set<std::string> used_, missing_;
  std::map<std::string, Joined> joined_;  // by the name of the module of experts
  std::vector<StateMapper> mappers_;
};

}  // namespace

PeftFolder::PeftFolder(const fs::path& path) : path_(path.string()) {
  const fs::path file = path / kPeftConfig, weights = path / kPeftWeights;
  const json config = read_config(file);
  check_is_lora(config, file);
  params_ = {.r = value_of<std::int64_t>(config, "r", 0, file),
             .alpha = value_of<double>(config, "lora_alpha", 0.0, file),
             .use_rslora = value_of(config, "use_rslora", false, file)};
  has_magnitudes_ = value_of(config, "use_dora", false, file);
  if (config.value("base_model_name_or_path", json()).is_string()) base_ = config["base_model_name_or_path"];
  D9D_CHECK(params_.r > 0, ConfigError, "[peft] expected r > 0 in '", file.string(), "', got ", params_.r, ".");
  ranks_ = patterns_of<std::int64_t>(config, "rank_pattern", file);
  alphas_ = patterns_of<double>(config, "alpha_pattern", file);
  for (const std::string& name : value_of<Names>(config, "target_parameters", {}, file)) {
    parameters_.insert(name.substr(name.rfind('.') + 1));
  }
  std::error_code error;
  D9D_CHECK(fs::exists(weights, error), IoError, "[peft] expected adapters in '", weights.string(),
            "', got no such file. Write them as safetensors: in Python, model.save_pretrained(FOLDER).");
  const SafetensorsFile opened(weights);
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [name, entry] : opened.entries()) {
    if (!name.ends_with(kBase)) tensors.emplace(name, opened.tensor(name));
  }
  tensors_ = tensors_of(std::move(tensors));
}

LoraParams PeftFolder::params_of(const std::string& module) const {
  LoraParams params = params_;
  params.r = static_cast<std::int64_t>(matching(ranks_, module, static_cast<double>(params.r)));
  params.alpha = matching(alphas_, module, params.alpha);
  return params;
}

StateMapper from_peft(const AdaptedModel& model, const StateMapper& exported, const PeftFolder& folder) {
  return Reader(exported, folder)(model);
}

}  // namespace d9d
