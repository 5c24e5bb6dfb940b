// What the stages of a job cost: each rank builds its stages as the job builds its own, runs them on the first
// microbatch, and drops them. Then all ranks have the costs of all stages.
//
// Example
//   const MeasuredPipeline measured = measure_pipeline({context, config, binding, task, provider, schedule}, {1, 2});
//   measured.stages.at(8)[7].forward;               // seconds, of the last of 8 stages
//
// Nothing is left of the measurement but what task and provider remember by themselves.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "d9d/loop/measure/measured_cut.h"
#include "d9d/pipelining/api/stage_info.h"
#include "d9d/pipelining/program/pipeline_costs.h"

namespace d9d {

struct MeasuredPipeline {
  std::int64_t num_microbatches = 0;                       // of the first step, in a pipeline
  std::map<std::int64_t, std::vector<StageCosts>> stages;  // by the number of stages
  LinkCosts link = {};                                     // of the slowest link
  double composed_overlap = 0;                             // as in PipelineCosts, on the rank that hides least
  std::optional<LayerDistribution> layers = std::nullopt;  // if the model says
  std::optional<double> device_bytes = std::nullopt;       // that a rank may have, on the fullest one; none: a CPU
  std::vector<std::string> refusals = {};                  // why the model cannot be cut into other numbers of stages
};

// Of all ranks of a job. Replicas of a stage wait for each other: of their times and bytes the largest count, of
// device bytes and of what composed computations hide the least.
[[nodiscard]] MeasuredPipeline merged(const std::vector<RankMeasurement>& ranks);

// Collective over the job, the same result on all ranks. Cuts the model into each of these numbers of stages a rank;
// those that it refuses by a ConfigError are left out. ConfigError if it can be cut in no such way, or if a rank has no
// microbatch in the first step. What a stage throws says that it was being measured.
[[nodiscard]] MeasuredPipeline measure_pipeline(const UnbuiltJob& job,
                                                const std::set<std::int64_t>& nums_of_stages_per_rank);

}  // namespace d9d
