// Implements trainer.memory_budget: measures what layers cost with each plan for their activations, before the job
// builds its model, and chooses for each layer the plan with which a step is fastest within the budget.
//
// Example
//   const auto budgeted = plans_within_budget({context, config, binding, packs, task, provider, schedule}, pipeline);
//   ...                                                    // the stages are built
//   if (budgeted) follow_plans(*budgeted, stages);
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "d9d/loop/measure/measured_split.h"
#include "d9d/modules/activation_plan.h"
#include "d9d/pipelining/schedules/pipeline_schedule.h"

namespace d9d {

struct BudgetedPlans {
  // One for each unit (activation_units()) of each stage of this rank, in increasing order of the stages.
  std::vector<std::vector<ActivationPlan>> plans = {};
  std::int64_t device_bytes = 0;  // that the budget gives this rank
};

// Throws ConfigError for a budget that this job cannot have: with trainer.pipelining.schedule = auto in a pipeline,
// whose stages are measured as they keep everything, and with device = auto on a CPU.
void check_memory_budget(const DistContext& context, const TrainerConfig& config);

// Collective over the job. Returns none without a budget, and for a job without steps left. Ranks with the same stages
// get the same plans. The units that recompute most are the first of their kind, whose backward comes when the others
// have given their memory back. A resumed job chooses anew, since plans change no numbers. The main process logs what
// was measured and chosen. Throws ConfigError on all ranks if nothing fits, naming what the least needs, if the model
// has no units, or if its units have other plans than to keep everything, which would be two settings of one thing.
[[nodiscard]] std::optional<BudgetedPlans> plans_within_budget(const UnbuiltJob& job, const PipelineSchedule& schedule);

// Local. Sets the plans of the units of the stages of this rank.
void follow_plans(const BudgetedPlans& budgeted, const std::vector<std::shared_ptr<Module>>& stages);

}  // namespace d9d
