// Placements that tensor parallelism could declare wrongly: for each parameter of each block's plan every other
// placement, and the sum of its gradient left out. Found by walking the plans of a model, so that new entries of plans
// are among them.
//
// Example
//   for (const PlanMutation& mutation : plan_mutations(*model, 2)) {
//     EXPECT_NE(difference(train(drawn, mutation), expected, tolerance("fp64")), "") << to_string(mutation);
//   }
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "d9d/core/dtensor/placement.h"
#include "d9d/modules/module.h"

namespace d9d::test {

struct PlanMutation {
  std::string parameter;  // its name in the model; layers are numbered by *, since all have the plan
  Placement declared;
  Placement placement;  // instead
  Placement gradient;   // of its gradient
};

[[nodiscard]] std::string to_string(const PlanMutation& mutation);
// Before the model is laid out: a plan may leave out what another mesh has placed.
[[nodiscard]] std::vector<PlanMutation> plan_mutations(Module& model, std::int64_t num_ranks);

// Local. After the model was laid out over tensor-parallel ranks alone, and before materialize.
void mutate_plan(const Module& model, const PlanMutation& mutation);

}  // namespace d9d::test
