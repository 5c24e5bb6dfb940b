// What the stages of a job cost: each rank builds its stages as the job builds its own, runs them on the first
// microbatch, and drops them. Then all ranks have the costs of all stages.
//
// Example
//   const MeasuredPipeline measured = measure_pipeline({context, config, binding, task, provider, schedule}, {1, 2});
//   measured.stages.at(8)[7].forward;               // seconds, of the last of 8 stages
//
// Parameters have their initial values, also where the job reads a checkpoint: they are not what costs depend on.
// Nothing is left of the measurement but what task and provider remember by themselves.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "d9d/loop/component/task_binding.h"
#include "d9d/loop/config/trainer_config.h"
#include "d9d/loop/control/job_schedule.h"
#include "d9d/loop/control/providers.h"
#include "d9d/loop/control/task.h"
#include "d9d/pipelining/program/pipeline_costs.h"

namespace d9d {

// A job before its model is built. All are borrowed.
struct UnbuiltJob {
  const DistContext& context;
  const TrainerConfig& config;
  TaskBinding& binding;  // whose stream is built
  AnyTask& task;
  AnyModelProvider& model;
  const JobSchedule& schedule;
};

struct MeasuredPipeline {
  std::int64_t num_microbatches = 0;                       // of the first step, in a pipeline
  std::map<std::int64_t, std::vector<StageCosts>> stages;  // by the number of stages
  LinkCosts link = {};                                     // of the slowest link
  std::optional<LayerDistribution> layers = std::nullopt;  // if the model says
  std::optional<double> free_bytes = std::nullopt;         // for activations, on the fullest rank; none: a CPU
  std::vector<std::string> refusals = {};                  // why the model cannot be cut into other numbers of stages
};

// What one rank has measured.
struct RankMeasurement {
  struct Stage {
    std::int64_t num_stages = 1;
    std::int64_t stage = 0;
    StageCosts costs = {};

    static constexpr auto fields() {
      return record<Stage>(required("num_stages", &Stage::num_stages), required("stage", &Stage::stage),
                           required("costs", &Stage::costs));
    }
  };
  std::int64_t num_microbatches = 0;
  std::vector<Stage> stages = {};
  LinkCosts link = {};
  std::optional<double> free_bytes = {};

  static constexpr auto fields() {
    using Rank = RankMeasurement;
    return record<Rank>(required("num_microbatches", &Rank::num_microbatches), required("stages", &Rank::stages),
                        required("link", &Rank::link), required("free_bytes", &Rank::free_bytes));
  }
};

// Of all ranks of a job. Replicas of a stage wait for each other: of their times and bytes the largest count, of free
// bytes the least.
[[nodiscard]] MeasuredPipeline merged(const std::vector<RankMeasurement>& ranks);

// Collective over the job, the same result on all ranks. Cuts the model into each of these numbers of stages a rank;
// those that it refuses by a ConfigError are left out. ConfigError if it can be cut in no such way, or if a rank has no
// microbatch in the first step. What a stage throws says that it was being measured.
[[nodiscard]] MeasuredPipeline measure_pipeline(const UnbuiltJob& job,
                                                const std::set<std::int64_t>& nums_of_stages_per_rank);

}  // namespace d9d
