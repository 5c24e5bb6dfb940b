#include "d9d/pipelining/program/pipeline_costs.h"

#include <algorithm>

#include "d9d/base/check.h"
#include "d9d/base/config/describe.h"

namespace d9d {

template const ValueType& json_type<PipelineCosts>();

void check_costs(const PipelineCosts& costs, std::int64_t num_stages) {
  const auto count = static_cast<std::int64_t>(costs.stages.size());
  D9D_CHECK(count <= 1 || count == num_stages, ConfigError, "[pipelining::costs] expected the costs of ", num_stages,
            " stages, or of one that stands for all, got ", count, ". Change the number of stages or the costs.");
}

const StageCosts& costs_of(const PipelineCosts& costs, StageIndex stage) {
  static const StageCosts kUnits;
  if (costs.stages.empty()) return kUnits;
  return costs.stages.size() == 1 ? costs.stages[0] : costs.stages.at(static_cast<std::size_t>(stage.value));
}

const LinkCosts& costs_of(const PipelineCosts& costs, const DirectedLink& link) {
  const auto found = std::ranges::find_if(
      costs.links, [&](const OneLinkCosts& one) { return one.from == link.from && one.to == link.to; });
  return found == costs.links.end() ? costs.link : found->costs;
}

double duration_of(const PipelineCosts& costs, const ComputeAction& action) {
  const StageCosts& stage = costs_of(costs, stage_of(action));
  if (holds<ForwardAction>(action)) return stage.forward;
  if (holds<BackwardAction>(action)) return stage.backward;
  return holds<BackwardInputAction>(action) ? stage.backward_input : stage.backward_weight;
}

double overlap_of(const PipelineCosts& costs, const ComputeAction& first, const ComputeAction& second) {
  return costs.composed_overlap * std::min(duration_of(costs, first), duration_of(costs, second));
}

}  // namespace d9d
