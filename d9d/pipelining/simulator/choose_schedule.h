// Chooses the schedule, the number of stages a rank and the number of microbatches: those with the shortest simulated
// step that fits into memory.
//
// Example
//   const ScheduleChoice choice = choose_schedule({
//       .num_ranks = 4,
//       .microbatches = {{.count = 16, .model = {.layers = std::vector(32, layer), .post = head}}},
//       .max_bytes = 40e9});
//   std::cout << choice.explanation;      // the candidates, why this one, and what would balance the stages
//   choice.best.schedule;                 // trainer.pipelining.schedule of a job
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "d9d/pipelining/program/pipeline_costs.h"
#include "d9d/pipelining/schedules/pipeline_schedule_config.h"

namespace d9d {

// The costs of one microbatch in each part of a model, measured or modelled.
struct ModelCosts {
  StageCosts pre = kNoCosts;            // before the first layer: embedding
  std::vector<StageCosts> layers = {};  // the layers in order
  StageCosts post = kNoCosts;           // after the last layer: head and loss
  static constexpr StageCosts kNoCosts = {0, 0, 0, 0, 0, 0, 0};
};

// One way to split the batch of a step into microbatches.
struct MicrobatchOption {
  std::int64_t count = 1;  // microbatches a step
  ModelCosts model = {};   // costs of a microbatch of that size
  // Measured costs of the stages, by the number of stages. If there are any, schedules with other numbers of stages are
  // not candidates, and `model`, which may be empty, only serves to balance the stages.
  std::map<std::int64_t, std::vector<StageCosts>> stages = {};
};

struct ScheduleRequest {
  std::int64_t num_ranks = 1;
  std::vector<MicrobatchOption> microbatches = {};  // at least one
  LinkCosts link = {};
  double composed_overlap = 0;                         // as in PipelineCosts
  std::vector<PipelineScheduleConfig> schedules = {};  // empty: training_schedules(max_stages_per_rank)
  std::int64_t max_stages_per_rank = 4;
  std::int64_t num_virtual_layers_pre = 0;  // virtual layers of the job (LayerDistribution)
  std::int64_t num_virtual_layers_post = 0;
  std::optional<double> max_bytes = std::nullopt;  // limit of the bytes that a rank keeps
};

struct ScheduleCandidate {
  PipelineScheduleConfig schedule = {};
  std::int64_t num_microbatches = 0;
  std::int64_t num_virtual_layers_pre = 0;
  std::int64_t num_virtual_layers_post = 0;
  double makespan = 0;
  double bubble_fraction = 0;
  double peak_bytes = 0;  // of microbatches and stages, on the rank that keeps most
  bool fits = true;
};

struct ScheduleChoice {
  ScheduleCandidate best;
  // The candidates that were simulated, the shortest step first. Left out are schedules that cannot run, and those
  // whose step must be longer than the best: on one of their ranks, the wait for the first input and the computations
  // alone take longer.
  std::vector<ScheduleCandidate> candidates;
  // `best` with the virtual layers that shorten its step most; nullopt if none do. If stages were measured, its
  // makespan is that of `best`, scaled by the factor by which the virtual layers shorten the step that is simulated
  // with the costs of the model.
  std::optional<ScheduleCandidate> balanced;
  std::string explanation;
};

// Returns every schedule that trains, with up to max_stages_per_rank stages a rank.
[[nodiscard]] std::vector<PipelineScheduleConfig> training_schedules(std::int64_t max_stages_per_rank);

// Returns the costs of each of num_stages stages. Throws ConfigError if a stage would have no layer.
[[nodiscard]] std::vector<StageCosts> stage_costs(const ModelCosts& model, std::int64_t num_stages,
                                                  std::int64_t num_virtual_layers_pre,
                                                  std::int64_t num_virtual_layers_post);

// Returns the measured costs of the option's num_stages stages, or the costs by its model if it has no measured costs.
// Throws ConfigError if it has measured costs, but not for num_stages stages.
[[nodiscard]] std::vector<StageCosts> stage_costs(const MicrobatchOption& option, const ScheduleCandidate& candidate,
                                                  std::int64_t num_stages);

// Simulates as many candidates as it takes to find the one with the shortest simulated step among those that fit, and
// returns it as ScheduleChoice::best. Throws ConfigError if no candidate can run, or if none fits, naming the one that
// keeps the fewest bytes.
[[nodiscard]] ScheduleChoice choose_schedule(const ScheduleRequest& request);

}  // namespace d9d
