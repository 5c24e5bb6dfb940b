#include "d9d/internals/grad_norm/gradient_norms.h"

#include <cmath>
#include <set>
#include <utility>

#include <ATen/ATen.h>
#include <nlohmann/json.hpp>

#include "d9d/core/collectives/gather.h"
#include "d9d/internals/grad_norm/distributed_grad_norm.h"

namespace d9d {
namespace {

using Parts = std::map<std::string, std::vector<ParameterPtr>>;

// Collective over the stages. Returns the parameter names of earlier stages.
std::set<std::string> names_before(const std::map<std::string, ParameterPtr>& own, const DeviceMesh& stages) {
  nlohmann::json names = nlohmann::json::array();
  for (const auto& [name, parameter] : own) names.push_back(name);
  const std::vector<nlohmann::json> all = all_gather_object(names, stages);
  std::set<std::string> before;
  for (std::int64_t rank = 0; rank < stages.index(); ++rank) {
    for (const auto& name : all[static_cast<std::size_t>(rank)]) before.insert(name.get<std::string>());
  }
  return before;
}

}  // namespace

PartOfParameter by_prefix(std::size_t num_parts) {
  return [num_parts](const std::string& parameter) {
    std::size_t end = 0;
    for (std::size_t i = 0; i < num_parts && end != std::string::npos; ++i) {
      end = parameter.find('.', i == 0 ? 0 : end + 1);
    }
    return parameter.substr(0, end);
  };
}

std::map<std::string, double> gradient_norms(const std::vector<std::reference_wrapper<Module>>& modules,
                                             const PartOfParameter& part, const DeviceMesh& stages) {
  std::map<std::string, ParameterPtr> own;
  std::vector<std::string> order;
  for (Module& module : modules) {
    for (const auto& [name, parameter] : module.named_parameters()) {
      if (parameter->requires_grad() && own.emplace(name, parameter).second) order.push_back(name);
    }
  }
  const std::set<std::string> before = names_before(own, stages);
  Parts parts;
  for (const std::string& name : order) {
    const std::string key = part(name);
    if (!key.empty() && !before.contains(name)) parts[key].push_back(own.at(name));
  }
  // All ranks that share this rank's parameters have the same parts, in the same order.
  nlohmann::json squares = nlohmann::json::object();
  for (const auto& [key, parameters] : parts) {
    const at::Tensor norm = distributed_grad_norm(group_parameters_for_norm(parameters), 2.0, DeviceMesh());
    const auto value = norm.item<double>();
    squares[key] = value * value;
  }
  std::map<std::string, double> norms;
  for (const nlohmann::json& of_rank : all_gather_object(squares, stages)) {
    for (const auto& [key, square] : of_rank.items()) norms[key] += square.get<double>();
  }
  for (auto& [key, norm] : norms) norm = std::sqrt(norm);
  return norms;
}

}  // namespace d9d
