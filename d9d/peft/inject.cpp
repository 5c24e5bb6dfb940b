#include "d9d/peft/inject.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "d9d/base/check.h"
#include "d9d/base/name_regex.h"
#include "d9d/blocks/moe/moe_layer.h"
#include "d9d/modules/adopt.h"
#include "d9d/peft/adapter_site.h"

namespace d9d {
namespace {

struct NamedModule {
  std::string name;
  Module* module;
};

// Each module once, under the first of its names, as the model was before any adapter.
std::vector<NamedModule> modules_of(Module& model) {
  std::vector<NamedModule> modules;
  std::set<const Module*> seen;
  model.for_each_module([&](const std::string& name, Module& module) {
    if (seen.insert(&module).second) modules.push_back({name, &module});
  });
  return modules;
}

// Whether it belongs to a module of torch::nn that can have no adapter, though it may compute products.
bool is_opaque(const NamedModule& each) {
  return dynamic_cast<const detail::AdoptedTensors*>(each.module) != nullptr && adapter_site(*each.module) == nullptr;
}

class Injector {
 public:
  explicit Injector(Module& model) : model_(model), modules_(modules_of(model)) {
    for (const auto& [name, module] : modules_) {
      const std::unique_ptr<AdapterSite> site = adapter_site(*module);
      D9D_CHECK(site == nullptr || !site->has_adapter(), ConfigError,
                "[peft] expected a model without adapters, got one of '", name,
                "', which would freeze. Inject once, with a stack of all methods.");
      if (site != nullptr) result_.linears.push_back(name);
      if (dynamic_cast<MoELayer*>(module) != nullptr) mixtures_.push_back(name + ".");
    }
    for (const auto& [name, parameter] : model.named_parameters()) names_.emplace(parameter.get(), name);
  }

  // Adapters first, so that the order of a stack changes nothing.
  PeftInjection operator()(const PeftConfig& method) {
    model_.set_requires_grad(false);
    each<LoraConfig>(method, [this](const LoraConfig& lora) { add_adapters(lora, /*has_magnitude=*/false); });
    each<DoraConfig>(method, [this](const DoraConfig& dora) {
      add_adapters({.module_name_pattern = dora.module_name_pattern, .params = dora.params}, /*has_magnitude=*/true);
    });
    each<FullTuneConfig>(method, [this](const FullTuneConfig& tune) { train_whole(tune); });
    for (const auto& [name, parameter] : model_.named_parameters()) {
      if (parameter->requires_grad()) result_.trained.push_back(name);
    }
    return std::move(result_);
  }

 private:
  template <class Method>
  static void each(const PeftConfig& method, const std::function<void(const Method&)>& visit) {
    if (const auto* const found = std::get_if<Method>(&method)) visit(*found);
    if (const auto* const stack = std::get_if<StackConfig>(&method)) {
      for (const PeftConfig& inner : stack->methods) each(inner, visit);
    }
  }

  void add_adapters(const LoraConfig& lora, bool has_magnitude) {
    D9D_CHECK(lora.params.r > 0, ConfigError, "[peft] expected a rank r > 0 of '", lora.module_name_pattern, "', got ",
              lora.params.r, ".");
    D9D_CHECK(lora.params.alpha > 0.0 && std::isfinite(lora.params.alpha), ConfigError,
              "[peft] expected a finite alpha > 0 of '", lora.module_name_pattern, "', got ", lora.params.alpha, ".");
    const NameRegex pattern(lora.module_name_pattern, "[peft] ", "of names of modules");
    bool matches = false;
    for (const NamedModule& each : modules_) {
      if (!pattern.matches(each.name)) continue;
      D9D_CHECK(!is_opaque(each), ConfigError, "[peft] expected '", lora.module_name_pattern,
                "' to match no module whose adapters are not built in this version, got '", each.name,
                "', which is, or is inside, an adopted module other than torch::nn::Linear. Narrow the pattern, or "
                "train the module by full_tune.");
      const std::unique_ptr<AdapterSite> site = adapter_site(*each.module);
      if (site == nullptr) continue;
      matches = true;
      if (site->computes()) add_adapter(each.name, *site, lora.params, has_magnitude);
      for (const ParameterPtr& base : site->bases()) {
        if (belongs_to(each.name, base)) bases_.insert(base.get());
      }
    }
    if (!matches) result_.unmatched.push_back(lora.module_name_pattern);
  }

  void add_adapter(const std::string& name, AdapterSite& site, const LoraParams& params, bool has_magnitude) {
    D9D_CHECK(!has_magnitude || site.can_have_magnitude(), ConfigError,
              "[peft] expected DoRA of linears between hidden activations, got '", name,
              "': that of experts, routers, embeddings, heads and adopted modules is not built in this version. Narrow "
              "module_name_pattern, or train it by lora.");
    D9D_CHECK(!site.has_adapter(), ConfigError, "[peft] expected one adapter for each module, got two for '", name,
              "'. Let one pattern match it.");
    D9D_CHECK(params.dropout == 0.0 || !is_in_mixture(name), ConfigError,
              "[peft] expected adapters without dropout within a mixture of experts, where it is not built in this "
              "version, got ",
              params.dropout, " for '", name, "'. Set it to 0.");
    site.add({.rank = params.r, .scale = params.scale(), .dropout = params.dropout, .has_magnitude = has_magnitude});
    if (has_magnitude) normed_.emplace(site.bases().front().get(), name);
    result_.adapted.push_back(name);
  }

  // Whether it is a parameter of the module or of one below, by its first name: tied weights belong to the embedding,
  // on each stage that has them, and not to the head, which the others do not see.
  [[nodiscard]] bool belongs_to(const std::string& module_name, const ParameterPtr& parameter) const {
    const auto found = names_.find(parameter.get());
    return found != names_.end() && (module_name.empty() || found->second.starts_with(module_name + "."));
  }

  [[nodiscard]] bool is_in_mixture(const std::string& name) const {
    return std::ranges::any_of(mixtures_, [&](const std::string& prefix) { return name.starts_with(prefix); });
  }

  void train_whole(const FullTuneConfig& tune) {
    const NameRegex pattern(tune.module_name_pattern, "[peft] ", "of names of modules");
    bool matches = false;
    for (const auto& [name, module] : modules_) {
      if (!pattern.matches(name)) continue;
      const bool is_named = adapter_site(*module) != nullptr;
      for (const auto& [parameter_name, parameter] : module->named_parameters()) {
        if (!belongs_to(name, parameter) || (!is_named && bases_.contains(parameter.get()))) continue;
        matches = true;
        const auto normed = normed_.find(parameter.get());
        D9D_CHECK(normed == normed_.end(), ConfigError,
                  "[peft] expected DoRA or full_tune for each weight, got both for '", normed->second,
                  "', whose rows have trained magnitudes in place of their norms. Narrow '", tune.module_name_pattern,
                  "', or train it by lora and full_tune.");
        parameter->set_requires_grad(true);
      }
    }
    if (!matches) result_.unmatched.push_back(tune.module_name_pattern);
  }

  Module& model_;
  const std::vector<NamedModule> modules_;
  std::vector<std::string> mixtures_;               // prefixes of names
  std::set<const Parameter*> bases_;                // weights and biases of modules with adapters
  std::map<const Parameter*, std::string> normed_;  // weights with magnitudes, and the names of their modules
  std::map<const Parameter*, std::string> names_;   // of the model without adapters
  PeftInjection result_;
};

std::string some_of(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 4;
  std::string text;
  for (std::size_t i = 0; i < std::min(kShown, names.size()); ++i) text += cat(i == 0 ? "'" : "', '", names[i]);
  return names.empty() ? "none" : text + "'";
}

}  // namespace

PeftInjection inject_peft_into_stage(const PeftConfig& method, Module& stage) { return Injector(stage)(method); }

void check_patterns(const std::vector<PeftInjection>& stages) {
  std::vector<std::string> linears;
  for (const PeftInjection& stage : stages) linears.insert(linears.end(), stage.linears.begin(), stage.linears.end());
  for (const std::string& pattern : stages.front().unmatched) {
    const bool is_unmatched = std::ranges::all_of(stages, [&](const PeftInjection& stage) {
      return std::ranges::find(stage.unmatched, pattern) != stage.unmatched.end();
    });
    D9D_CHECK(!is_unmatched, ConfigError, "[peft] expected module_name_pattern '", pattern,
              "' to match the whole name of a module of which it trains something, got none. Modules that can have "
              "adapters are ",
              some_of(linears), ", ...: ", linears.size(), " in all.");
  }
}

PeftInjection inject_peft(const PeftConfig& method, Module& model) {
  PeftInjection injected = inject_peft_into_stage(method, model);
  check_patterns({injected});
  return injected;
}

}  // namespace d9d
