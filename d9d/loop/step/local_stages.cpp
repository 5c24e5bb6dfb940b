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

NumParameters num_parameters(const Module& stages, const DistContext& context) {
  nlohmann::json own = nlohmann::json::object(), all = nlohmann::json::object();
  for (const auto& [name, parameter] : stages.named_parameters()) {
    own[name] = {parameter->global_numel(), parameter->requires_grad()};
  }
  for (const nlohmann::json& of_rank : all_gather_object(own, context.mesh(MeshDomain::kRegular).slice({"pp"}))) {
    all.update(of_rank);
  }
  NumParameters sum;
  for (const nlohmann::json& each : all) {
    const auto numel = each[0].get<double>();
    sum.all += numel;
    if (each[1].get<bool>()) sum.trained += numel;
  }
  return sum;
}

}  // namespace d9d
