#include "d9d/peft/adapted_model.h"

#include <set>
#include <variant>

#include "d9d/blocks/linear/linear.h"
#include "d9d/blocks/moe/grouped_linear.h"
#include "d9d/peft/inject.h"

namespace d9d {
namespace {

void add_params(const PeftConfig& method, std::vector<LoraParams>& params) {
  if (const auto* const lora = std::get_if<LoraConfig>(&method)) params.push_back(lora->params);
  if (const auto* const stack = std::get_if<StackConfig>(&method)) {
    for (const PeftConfig& inner : stack->methods) add_params(inner, params);
  }
}

// The rank is the dim of A that its input does not have.
std::int64_t rank_of(const Linear& a) { return a.weight->global_shape().at(0); }
std::int64_t rank_of(const GroupedLinear& a) { return a.weight->global_shape().at(2); }

template <class L>
void add_linear(const std::string& name, const L* linear, std::vector<AdaptedLinear>& linears) {
  if (linear == nullptr || !linear->adapter()) return;
  linears.push_back({.name = name,
                     .weight_shape = linear->weight->global_shape(),
                     .rank = rank_of(*linear->adapter()->a),
                     .scale = linear->adapter()->scale});
}

void add_linears(const std::string& prefix, const Module& module, std::set<const Module*>& seen,
                 std::vector<AdaptedLinear>& linears) {
  for (const auto& [name, child] : module.named_children()) {
    if (!seen.insert(child.get()).second) continue;
    add_linear(prefix + name, dynamic_cast<const Linear*>(child.get()), linears);
    add_linear(prefix + name, dynamic_cast<const GroupedLinear*>(child.get()), linears);
    add_linears(prefix + name + ".", *child, seen, linears);
  }
}

}  // namespace

std::vector<AdaptedLinear> adapted_linears(const Module& model) {
  std::vector<AdaptedLinear> linears;
  std::set<const Module*> seen;
  add_linears("", model, seen, linears);
  return linears;
}

AdaptedModel adapted_model(const PeftConfig& method, Module& model) {
  (void)inject_peft(method, model);
  AdaptedModel adapted{.linears = adapted_linears(model), .tuned = {}, .params = {}};
  for (const auto& [name, parameter] : model.named_parameters()) {
    if (!parameter->requires_grad() || is_adapter_parameter(name)) continue;
    adapted.tuned.push_back({.name = name, .shape = parameter->global_shape(), .role = parameter->role()});
  }
  add_params(method, adapted.params);
  return adapted;
}

}  // namespace d9d
