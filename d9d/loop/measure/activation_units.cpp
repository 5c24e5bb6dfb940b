#include "d9d/loop/measure/activation_units.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <typeindex>
#include <typeinfo>

namespace d9d {
namespace {

std::vector<std::pair<std::string, Module*>> named_units(Module& stage) {
  std::vector<std::pair<std::string, Module*>> units;
  std::optional<std::string> inside;  // what names of modules below the last unit begin with
  stage.for_each_module([&](const std::string& name, Module& module) {
    if (inside && name.starts_with(*inside)) return;
    if (module.activation_plans().empty()) return;
    units.emplace_back(name, &module);
    inside = name.empty() ? "" : name + ".";
  });
  return units;
}

using Shape = std::tuple<std::string, std::vector<std::int64_t>, at::ScalarType, bool>;
using Alike = std::tuple<std::type_index, std::vector<Shape>, bool>;

bool is_trained(const Module& unit) {
  return std::ranges::any_of(unit.named_parameters(), [](const auto& named) { return named.second->requires_grad(); });
}

// is_reached: whether a trained unit comes before, so that backward goes through this one also if it is frozen.
Alike alike_of(const Module& unit, bool is_reached) {
  std::vector<Shape> shapes;
  for (const auto& [name, parameter] : unit.named_parameters()) {
    shapes.emplace_back(name, parameter->global_shape(), parameter->local().scalar_type(), parameter->requires_grad());
  }
  return {typeid(unit), shapes, is_reached && !is_trained(unit)};
}

}  // namespace

std::vector<Module*> activation_units(Module& stage) {
  std::vector<Module*> units;
  for (const auto& [name, unit] : named_units(stage)) units.push_back(unit);
  return units;
}

std::vector<AlikeUnits> alike_units(Module& stage) {
  std::vector<AlikeUnits> all;
  std::map<Alike, std::size_t> indices;
  bool is_reached = false;
  for (const auto& [name, unit] : named_units(stage)) {
    const auto [found, is_new] = indices.try_emplace(alike_of(*unit, is_reached), all.size());
    is_reached = is_reached || is_trained(*unit);
    if (is_new) all.push_back({.name = name, .plans = unit->activation_plans()});
    all[found->second].units.push_back(unit);
  }
  return all;
}

}  // namespace d9d
