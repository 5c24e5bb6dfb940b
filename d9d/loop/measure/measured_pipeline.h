// Measures the costs of all pipeline stages of a job. Each rank builds its stages as the job will, runs them on the
// first microbatch, and drops them.
//
// Example
//   const UnbuiltJob job{context, config, binding, packs, task, provider, schedule};
//   const MeasuredPipeline measured = measure_pipeline(job, {1, 2});
//   measured.stages.at(8)[7].forward;               // seconds, of the last of 8 stages
//
// The measurement changes no state of the job except what task and provider keep themselves.
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
  std::int64_t num_microbatches = 0;                       // of the first step, on the rank with the most
  std::map<std::int64_t, std::vector<StageCosts>> stages;  // costs of all stages, by the number of stages
  LinkCosts link = {};                                     // largest latency and time of all links
  double composed_overlap = 0;                             // as in PipelineCosts; the smallest of all ranks
  std::optional<LayerDistribution> layers = std::nullopt;  // none if the model declares none
  std::optional<double> device_bytes = std::nullopt;       // usable memory of the rank with the least; none on CPUs
  std::vector<std::string> refusals = {};                  // why numbers of stages are missing in `stages`
};

// Merges the measurements of all ranks. Takes the largest times and bytes of the replicas of a stage, since replicas
// wait for each other, and the smallest device_bytes and composed_overlap.
[[nodiscard]] MeasuredPipeline merged(const std::vector<RankMeasurement>& ranks);

// Collective over the job; the result is the same on all ranks. Splits the model into each of the given numbers of
// stages per rank, and leaves out the numbers that the model rejects with a ConfigError. Throws ConfigError if the
// model rejects all of them, or if a rank has no microbatch in the first step. Errors of a stage say that it was being
// measured.
[[nodiscard]] MeasuredPipeline measure_pipeline(const UnbuiltJob& job,
                                                const std::set<std::int64_t>& nums_of_stages_per_rank);

}  // namespace d9d
