#include "tests/layout/plan_mutation.h"

#include <map>
#include <regex>
#include <set>

#include "d9d/base/check.h"
#include "d9d/modules/tensor_plan.h"

namespace d9d::test {
namespace {

using Placed = TensorPlan::PlacedParameter;

// Layers are numbered by *.
std::string name_in_all_layers(const std::string& name) {
  return std::regex_replace(name, std::regex("layers\\.[0-9]+\\."), "layers.*.");
}

// Replicate, and Shard of each dim, but what is declared; of a Replicate also a gradient that is not summed. Two ranks
// divide the heads of all jobs: whether a Shard has a unit shows in odd_sizes_test.
void add_mutations(std::vector<PlanMutation>& mutations, const std::string& name, const Placed& placed) {
  const auto declared = std::visit([](const auto& placement) { return Placement(placement); }, placed.placement);
  const Placement whole = Replicate{};
  if (declared == whole) {
    mutations.push_back({name, declared, declared, Replicate{}});
  } else {
    mutations.push_back({name, declared, whole, Partial{ReduceOp::kSum}});
  }
  for (std::size_t dim = 0; dim < placed.parameter->global_shape().size(); ++dim) {
    const Placement other = Shard{static_cast<std::int64_t>(dim)};
    const auto* const shard = std::get_if<Shard>(&declared);
    if (shard == nullptr || shard->dim != static_cast<std::int64_t>(dim))
      mutations.push_back({name, declared, other, other});
  }
}

}  // namespace

std::string to_string(const PlanMutation& mutation) {
  return cat(mutation.parameter, ": ", to_string(mutation.declared), " as ", to_string(mutation.placement),
             " with a gradient that is ", to_string(mutation.gradient));
}

std::vector<PlanMutation> plan_mutations(Module& model, std::int64_t num_ranks) {
  std::map<const Parameter*, std::string> names;
  for (const auto& [name, parameter] : model.named_parameters()) {
    names.emplace(parameter.get(), name_in_all_layers(name));
  }
  std::vector<PlanMutation> mutations;
  std::set<std::string> known;
  model.for_each_module([&](const std::string&, Module& each) {
    const std::optional<TensorPlan> plan = each.tensor_plan(num_ranks);
    if (!plan) return;
    for (const Placed& placed : plan->parameters) {
      if (!placed.parameter) continue;
      const std::string& name = names.at(placed.parameter.get());
      if (known.insert(name).second) add_mutations(mutations, name, placed);
    }
  });
  return mutations;
}

void mutate_plan(const Module& model, const PlanMutation& mutation) {
  for (const auto& [name, parameter] : model.named_parameters()) {
    if (name_in_all_layers(name) != mutation.parameter) continue;
    parameter->place(DeviceMesh(parameter->mesh()), "tp", mutation.placement, mutation.gradient);
  }
}

}  // namespace d9d::test
