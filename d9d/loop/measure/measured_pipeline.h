// Measures the costs of the stages of a job: each rank builds its stages as the job builds its own, runs them on the
// first microbatch, and drops them. Afterwards all ranks know the costs of all stages.
//
// Example
//   const MeasuredPipeline measured = measure_pipeline({context, config, binding, task, provider, schedule}, {1, 2});
//   measured.stages.at(8)[7].forward;               // seconds, of the last of 8 stages
//
// The measurement leaves nothing but what task and provider remember by themselves.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "d9d/loop/measure/measured_split.h"
#include "d9d/pipelining/api/stage_info.h"
#include "d9d/pipelining/program/pipeline_costs.h"

namespace d9d {

struct MeasuredPipeline {
  std::int64_t num_microbatches = 0;                       // of the first step, in a pipeline
  std::map<std::int64_t, std::vector<StageCosts>> stages;  // by the number of stages
  LinkCosts link = {};                                     // of the slowest link
  double composed_overlap = 0;                             // as in PipelineCosts, on the rank that hides least
  std::optional<LayerDistribution> layers = std::nullopt;  // if the model declares it
  std::optional<double> device_bytes = std::nullopt;       // usable memory, of the rank with the least; none: a CPU
  std::vector<std::string> refusals = {};                  // why the model cannot be split into other numbers of stages
};

// Merges the measurements of all ranks. Replicas of a stage wait for each other, so the largest of their times and
// bytes count; of device_bytes and composed_overlap, the smallest.
[[nodiscard]] MeasuredPipeline merged(const std::vector<RankMeasurement>& ranks);

// Collective over the job; the result is the same on all ranks. Splits the model into each of the given numbers of
// stages per rank, and leaves out those that the model rejects with a ConfigError. Throws ConfigError if it rejects
// all, or if a rank has no microbatch in the first step. Errors of a stage say that it was being measured.
[[nodiscard]] MeasuredPipeline measure_pipeline(const UnbuiltJob& job,
                                                const std::set<std::int64_t>& nums_of_stages_per_rank);

}  // namespace d9d
