#include "d9d/peft/adapted_model.h"

#include <set>
#include <utility>
#include <variant>

#include "d9d/base/check.h"
#include "d9d/peft/inject.h"

namespace d9d {
namespace {

void add_params(const PeftConfig& method, std::vector<LoraParams>& params) {
  if (const auto* const lora = std::get_if<LoraConfig>(&method)) params.push_back(lora->params);
  if (const auto* const dora = std::get_if<DoraConfig>(&method)) params.push_back(dora->params);
  if (const auto* const stack = std::get_if<StackConfig>(&method)) {
    for (const PeftConfig& inner : stack->methods) add_params(inner, params);
  }
}

using ParameterNames = std::map<const Parameter*, std::string>;

ParameterNames names_of(const Module& module, const std::string& prefix) {
  ParameterNames names;
  for (const auto& [name, parameter] : module.named_parameters()) names.emplace(parameter.get(), prefix + name);
  return names;
}

std::vector<std::string> named(const std::vector<ParameterPtr>& parameters, const ParameterNames& names) {
  std::vector<std::string> result;
  for (const ParameterPtr& parameter : parameters) result.push_back(names.at(parameter.get()));
  return result;
}

// The size of the dim of A that the weight does not have.
std::int64_t rank_of(const LowRankTerms& terms) {
  const std::vector<std::int64_t>& a = terms.a.front()->global_shape();
  return terms.product == LowRankProduct::kLinear ? a.front() : a.back();
}

class Description {
 public:
  explicit Description(const Module& model) : stored_(names_of(model, "")) {
    for_each_adapter_site(model, [this](const std::string& name, const Module& module, const AdapterSite& site) {
      add(name, module, site);
    });
    for (auto& [stored, others] : shared_) {
      if (adapted_.contains(stored)) result_.untied.emplace(stored, std::move(others));
    }
  }
  [[nodiscard]] AdaptedModel take() { return std::move(result_); }

 private:
  void add(const std::string& name, const Module& module, const AdapterSite& site) {
    const ParameterNames own = names_of(module, name + ".");
    for (const ParameterPtr& base : site.bases()) {
      // One that is not listed belongs to another of this rank's stages, with the name that is listed.
      const std::string& stored = stored_.emplace(base.get(), own.at(base.get())).first->second;
      if (stored != own.at(base.get())) shared_[stored].push_back(own.at(base.get()));
    }
    if (!site.has_adapter()) return;
    const LowRankTerms terms = site.terms();
    AdaptedModule adapted{.name = name,
                          .product = terms.product,
                          .role = terms.weights.front()->role(),
                          .weights = {},
                          .a = named(terms.a, own),
                          .b = named(terms.b, own),
                          .rank = rank_of(terms),
                          .scale = terms.scale,
                          .magnitude = terms.magnitude ? own.at(terms.magnitude.get()) : ""};
    for (const ParameterPtr& weight : terms.weights) {
      adapted.weights.push_back(
          {.stored = stored_.at(weight.get()), .merged = own.at(weight.get()), .shape = weight->global_shape()});
      adapted_.insert(adapted.weights.back().stored);
    }
    result_.modules.push_back(std::move(adapted));
  }

  ParameterNames stored_;
  std::map<std::string, std::vector<std::string>> shared_;  // further names of weights, by the first
  std::set<std::string> adapted_;                           // names of weights
  AdaptedModel result_;
};

}  // namespace

AdaptedModel adapters_of(const Module& model) { return Description(model).take(); }

std::set<std::string> adapter_parameters(const Module& model) {
  std::set<std::string> names;
  for (const AdaptedModule& module : adapters_of(model).modules) {
    names.insert(module.a.begin(), module.a.end());
    names.insert(module.b.begin(), module.b.end());
    if (module.has_magnitude()) names.insert(module.magnitude);
  }
  return names;
}

AdaptedModel adapted_model(const PeftConfig& method, Module& model) {
  (void)inject_peft(method, model);
  AdaptedModel adapted = adapters_of(model);
  for (const auto& [name, parameter] : model.named_parameters()) {
    if (!parameter->requires_grad() || is_adapter_parameter(name)) continue;
    adapted.tuned.push_back({.name = name, .shape = parameter->global_shape(), .role = parameter->role()});
  }
  add_params(method, adapted.params);
  return adapted;
}

}  // namespace d9d
