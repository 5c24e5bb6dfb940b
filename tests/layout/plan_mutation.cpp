#include "tests/layout/plan_mutation.h"

#include <functional>
#include <map>
#include <regex>

#include "d9d/base/check.h"
#include "d9d/modules/tensor_plan.h"

namespace d9d::test {
namespace {

using Placed = TensorPlan::PlacedParameter;

// Calls visit(name of the parameter, entry) for each entry of each plan.
void for_each_entry(Module& model, std::int64_t num_ranks,
                    const std::function<void(const std::string&, const Placed&)>& visit) {
  std::map<const Parameter*, std::string> names;
  for (const auto& [name, parameter] : model.named_parameters()) {
    names.emplace(parameter.get(), std::regex_replace(name, std::regex("layers\\.[0-9]+\\."), "layers.*."));
  }
  model.for_each_module([&](const std::string&, Module& each) {
    const std::optional<TensorPlan> plan = each.tensor_plan(num_ranks);
    if (!plan) return;
    for (const Placed& placed : plan->parameters) {
      if (placed.parameter) visit(names.at(placed.parameter.get()), placed);
    }
  });
}

Placement declared_by(const Placed& placed) {
  return std::visit([](const auto& placement) { return Placement(placement); }, placed.placement);
}

}  // namespace

std::string to_string(const PlanMutation& mutation) {
  return cat(mutation.parameter, ": ", to_string(mutation.declared), " as ", to_string(mutation.placement),
             " with a gradient that is ", to_string(mutation.gradient));
}

std::vector<PlanMutation> plan_mutations(Module& model, std::int64_t num_ranks) {
  std::vector<PlanMutation> mutations;
  std::map<std::string, bool> is_known;
  for_each_entry(model, num_ranks, [&](const std::string& name, const Placed& placed) {
    if (!is_known.emplace(name, true).second) return;
    const Placement declared = declared_by(placed);
    std::vector<Placement> others = {Replicate{}};
    for (std::size_t dim = 0; dim < placed.parameter->global_shape().size(); ++dim) {
      others.emplace_back(Shard{static_cast<std::int64_t>(dim)});
    }
    for (const Placement& other : others) {
      const bool is_whole = other == Placement(Replicate{});
      if (other == declared) {
        if (is_whole) mutations.push_back({name, declared, declared, Replicate{}});
      } else {
        mutations.push_back({name, declared, other, is_whole ? Placement(Partial{ReduceOp::kSum}) : other});
      }
    }
  });
  return mutations;
}

void mutate_plan(Module& model, const PlanMutation& mutation) {
  for_each_entry(model, model.named_parameters().front().second->mesh().axis_size("tp"),
                 [&](const std::string& name, const Placed& placed) {
                   if (name != mutation.parameter) return;
                   placed.parameter->place(DeviceMesh(placed.parameter->mesh()), "tp", mutation.placement,
                                           mutation.gradient);
                 });
}

}  // namespace d9d::test
