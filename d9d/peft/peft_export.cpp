#include "d9d/peft/peft_export.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <set>
#include <utility>

#include "d9d/base/check.h"
#include "d9d/model_state/mapper/compose.h"
#include "d9d/model_state/mapper/leaves.h"
#include "d9d/peft/published_names.h"

namespace d9d {
namespace {

using Names = std::vector<std::string>;
constexpr const char* kMerged = " Export merged weights.";

std::string leaf_of(const std::string& module) { return module.substr(module.rfind('.') + 1); }

// The factor of all weights under one name.
StateMapper joined(const Names& factors, const std::string& name) {
  return factors.size() == 1 ? mapper::rename(factors[0], name) : mapper::concatenate(factors, name, 0);
}

// One adapter for each of the modules, [out, in] there.
StateMapper mapper_of(const AdaptedModule& adapted, const Names& modules) {
  std::vector<StateMapper> mappers;
  for (const auto& [factors, part] : {std::pair{adapted.a, "lora_A"}, std::pair{adapted.b, "lora_B"}}) {
    Names names;
    for (const std::string& module : modules) names.push_back(peft_name(module, part, adapted.product));
    if (adapted.is_experts()) {
      mappers.push_back(
          mapper::sequential({mapper::transpose(factors[0], 1, 2), mapper::unstack(factors[0], names, 0)}));
    } else if (adapted.product == LowRankProduct::kTable && factors == adapted.a) {
      mappers.push_back(mapper::sequential({joined(factors, names[0]), mapper::transpose(names[0], 0, 1)}));
    } else {
      mappers.push_back(joined(factors, names[0]));
    }
  }
  return mapper::parallel(std::move(mappers));
}

// The one record of all adapters.
LoraParams params_of(const AdaptedModel& adapted) {
  const auto scale_of = [](const LoraParams& params) { return std::tuple(params.r, params.alpha, params.use_rslora); };
  for (const LoraParams& params : adapted.params) {
    D9D_CHECK(scale_of(params) == scale_of(adapted.params[0]), ConfigError,
              "[peft] expected adapters of one r, alpha and use_rslora to export them for Hugging Face peft and vLLM, "
              "got r = ",
              adapted.params[0].r, " with alpha = ", adapted.params[0].alpha, " and r = ", params.r,
              " with alpha = ", params.alpha, ", or both kinds of scale. Give all the same, or export merged weights.");
  }
  return adapted.params.at(0);
}

// Whether all adapters have magnitudes.
bool have_magnitudes(const AdaptedModel& adapted) {
  const AdaptedModule& first = adapted.modules[0];
  for (const AdaptedModule& module : adapted.modules) {
    D9D_CHECK(
        module.has_magnitude() == first.has_magnitude(), ConfigError,
        "[peft] expected adapters by lora or by dora alone to export them for Hugging Face peft, got one kind for '",
        first.name, "' and the other for '", module.name, "'.", kMerged);
  }
  return first.has_magnitude();
}

// peft takes a name for all modules whose last part it is.
Names shortest_targets(const std::set<std::string>& targets, const std::set<std::string>& all) {
  std::set<std::string> leaves;
  for (const std::string& module : targets) leaves.insert(leaf_of(module));
  const bool are_exact = std::ranges::all_of(
      all, [&](const std::string& module) { return targets.contains(module) || !leaves.contains(leaf_of(module)); });
  const std::set<std::string>& names = are_exact ? leaves : targets;
  return {names.begin(), names.end()};
}

// alpha as peft has it: the scale there is alpha / r, or alpha / sqrt(r) with use_rslora. Of experts peft 0.21 joins
// the adapters of gate and up to one of twice the rank, where use_rslora would be another scale.
void set_scale(const LoraParams& params, bool has_experts, nlohmann::json& config) {
  const bool use_rslora = params.use_rslora && !has_experts;
  const double alpha = params.use_rslora && has_experts ? params.scale() * static_cast<double>(params.r) : params.alpha;
  config["r"] = params.r;
  config["use_rslora"] = use_rslora;
  config["lora_alpha"] = alpha;
  constexpr double kExact = 9007199254740992.0;  // 2^53: integers up to here are those of an int64
  if (alpha == std::floor(alpha) && alpha <= kExact) config["lora_alpha"] = static_cast<std::int64_t>(alpha);
}

// What peft with transformers 5, whose experts are joined, does not take.
Names warnings_of_experts(const std::set<std::string>& dense, const std::set<std::string>& experts) {
  Names warnings;
  std::set<std::string> leaves;
  for (const std::string& module : experts) leaves.insert(leaf_of(module));
  const auto found = std::ranges::find_if(dense, [&](const std::string& m) { return leaves.contains(leaf_of(m)); });
  if (found != dense.end()) {
    warnings.push_back(cat("peft with transformers 5 ignores the adapter of ", *found,
                           ", whose name it takes for experts. Export merged weights for it"));
  }
  if (leaves.contains("gate_proj") != leaves.contains("up_proj")) {
    warnings.emplace_back(
        "peft with transformers 5 refuses adapters of one of the experts' gate_proj and up_proj. Export merged weights "
        "for it");
  }
  return warnings;
}

// What readers do not take of an adapter of an embedding or head.
Names warnings_of_vocabulary(const AdaptedModel& adapted, const std::set<std::string>& modules) {
  Names warnings;
  if (modules.empty()) return warnings;
  warnings.push_back(cat("vLLM takes adapters of ", *modules.begin(),
                         " for some architectures and versions alone. Export merged weights for others"));
  if (!adapted.untied.empty()) {
    warnings.push_back(cat("merge_and_unload() of peft adds the adapter of ", *modules.begin(),
                           ", whose weight is tied, to embedding and head. Export merged weights instead"));
  }
  return warnings;
}

// Modules that peft is to load whole, each with all of its parameters.
class WholeModules {
 public:
  WholeModules(const AdaptedModel& adapted, const PublishedNames& names) {
    for (const TunedParameter& parameter : adapted.tuned) {
      D9D_CHECK(can_be_saved_whole(parameter), ConfigError,
                "[peft] expected adapters, and norms, linears or routers beside them, to export for Hugging Face peft, "
                "got '",
                parameter.name, "', which full_tune trains and this version does not write there.", kMerged);
      const std::string name = names.name_of(parameter.name, parameter.shape);
      mappers_.push_back(mapper::rename(parameter.name, "base_model.model." + name));
      modules_.insert(name.substr(0, name.rfind('.')));
    }
  }
  [[nodiscard]] const std::set<std::string>& modules() const { return modules_; }
  [[nodiscard]] const std::vector<StateMapper>& mappers() const { return mappers_; }

 private:
  std::vector<StateMapper> mappers_;
  std::set<std::string> modules_;
};

}  // namespace

// Embeddings and heads may be tied, and are several tensors here; experts are several there.
bool can_be_saved_whole(const TunedParameter& parameter) {
  return parameter.role != ParameterRole::kEmbedding && parameter.role != ParameterRole::kHead &&
         parameter.role != ParameterRole::kGroupedLinear;
}

PeftExport peft_export(const AdaptedModel& adapted, const StateMapper& exported,
                       const std::optional<std::string>& base) {
  D9D_CHECK(!adapted.modules.empty(), ConfigError,
            "[peft] expected adapters to export for Hugging Face peft, got a model without them.", kMerged);
  const LoraParams params = params_of(adapted);
  const PublishedNames names(exported);
  const WholeModules whole(adapted, names);
  std::vector<StateMapper> mappers = whole.mappers(), magnitudes;
  std::set<std::string> dense, experts, vocabulary;
  for (const AdaptedModule& each : adapted.modules) {
    const Names modules = names.modules_of(each);
    mappers.push_back(mapper_of(each, modules));
    if (each.has_magnitude()) magnitudes.push_back(mapper::rename(each.magnitude, peft_magnitude_name(modules[0])));
    (each.is_experts() ? experts : dense).insert(modules.begin(), modules.end());
    if (each.is_vocabulary()) vocabulary.insert(modules[0]);
    D9D_CHECK(!whole.modules().contains(modules[0]), ConfigError,
              "[peft] expected an adapter or full_tune for each module to export for Hugging Face peft, got both for '",
              each.name, "'.", kMerged);
  }
  std::set<std::string> targets = dense;
  targets.insert(experts.begin(), experts.end());
  nlohmann::json config = {{"peft_type", "LORA"},
                           {"task_type", "CAUSAL_LM"},
                           {"base_model_name_or_path", base ? nlohmann::json(*base) : nlohmann::json()},
                           {"lora_dropout", params.dropout},
                           {"target_modules", shortest_targets(targets, names.modules())},
                           {"modules_to_save", nullptr},
                           {"bias", "none"},
                           {"fan_in_fan_out", false},
                           {"use_dora", have_magnitudes(adapted)},
                           {"inference_mode", true}};
  set_scale(params, !experts.empty(), config);
  Names warnings = warnings_of_experts(dense, experts);
  std::ranges::move(warnings_of_vocabulary(adapted, vocabulary), std::back_inserter(warnings));
  if (have_magnitudes(adapted)) {
    warnings.emplace_back("vLLM refuses adapters with use_dora. Export merged weights for it");
  }
  if (!whole.modules().empty()) {
    config["modules_to_save"] = whole.modules();
    warnings.push_back(cat("vLLM refuses adapters with modules_to_save, here ", *whole.modules().begin(),
                           " and others that full_tune trains. Export merged weights for it"));
  }
  return {.mapper = mapper::parallel(std::move(mappers)),
          .magnitudes = std::move(magnitudes),
          .config = std::move(config),
          .warnings = std::move(warnings)};
}

}  // namespace d9d
