#include "d9d/loop/step/local_stages.h"

#include <map>
#include <string>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <nlohmann/json.hpp>

#include "d9d/core/collectives/gather.h"

namespace d9d {
namespace {

class LocalStages final : public Module {
 public:
  explicit LocalStages(const std::vector<std::shared_ptr<Module>>& stages) {
    for (const auto& stage : stages) register_unnamed(stage);
  }
};

}  // namespace

std::shared_ptr<Module> local_stages(const std::vector<std::shared_ptr<Module>>& stages) {
  return stages.size() == 1 ? stages.front() : std::make_shared<LocalStages>(stages);
}

std::vector<ParameterCopy> copies_of(const std::vector<std::shared_ptr<Module>>& stages) {
  std::map<std::string, ParameterPtr> first;
  std::vector<ParameterCopy> copies;
  for (const auto& stage : stages) {
    for (const auto& [name, parameter] : stage->named_parameters()) {
      const auto [found, is_first] = first.try_emplace(name, parameter);
      if (!is_first) copies.push_back({.first = found->second, .copy = parameter});
    }
  }
  return copies;
}

void update_copies(const std::vector<ParameterCopy>& copies) {
  const at::NoGradGuard no_grad;
  for (const auto& [first, copy] : copies) copy->stored().copy_(first->stored());
}

double num_parameters(const Module& stages, const DistContext& context, bool trained_only) {
  nlohmann::json own = nlohmann::json::object(), all = nlohmann::json::object();
  for (const auto& [name, parameter] : stages.named_parameters()) {
    if (!trained_only || parameter->requires_grad()) own[name] = parameter->global_numel();
  }
  for (const nlohmann::json& of_rank : all_gather_object(own, context.mesh(MeshDomain::kRegular).slice({"pp"}))) {
    all.update(of_rank);
  }
  double sum = 0;
  for (const nlohmann::json& numel : all) sum += numel.get<double>();
  return sum;
}

}  // namespace d9d
