// A model in some number of stages that are measured and dropped: each rank builds its own as the job builds those that
// it trains, and runs them on the first microbatch.
//
// Example
//   MeasuredCut cut({context, config, binding, task, provider, schedule}, /*num_stages_per_rank=*/2);
//   if (const auto refusal = cut.build()) return *refusal;
//   cut.measure(measurement);
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "d9d/core/device/allocated_bytes.h"
#include "d9d/loop/config/trainer_config.h"
#include "d9d/loop/step/task_binding.h"
#include "d9d/loop/task/job_schedule.h"
#include "d9d/loop/task/providers.h"
#include "d9d/loop/task/task.h"
#include "d9d/pipelining/program/pipeline_costs.h"
#include "d9d/pipelining/program/stage_placement.h"

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
  double composed_overlap = 0;  // as in PipelineCosts
  std::optional<double> device_bytes = {};

  static constexpr auto fields() {
    using Rank = RankMeasurement;
    return record<Rank>(required("num_microbatches", &Rank::num_microbatches), required("stages", &Rank::stages),
                        required("link", &Rank::link), required("composed_overlap", &Rank::composed_overlap),
                        required("device_bytes", &Rank::device_bytes));
  }
};

class MeasuredCut {
 public:
  // `job` is borrowed.
  MeasuredCut(const UnbuiltJob& job, std::int64_t num_stages_per_rank);

  // Collective over the job. Why the model cannot be cut so, what the provider's ConfigError said on some rank; none:
  // the stages are there. Parameters have their initial values, also where the job reads a checkpoint.
  [[nodiscard]] std::optional<std::string> build();
  // After build(): what the model says of its layers; none where it does not.
  [[nodiscard]] std::optional<LayerDistribution> layers() const { return model_stages_.front()->layers; }
  // Collective over the job, after build(); TaskBinding::peek_pack() has a microbatch. Adds the costs of this rank's
  // stages, those of the link to the next rank unless there are some, and of two stages what composed computations
  // hide. Lowers the device bytes to nine tenths of what is free and what these stages hold. What a stage throws names
  // it.
  void measure(RankMeasurement& measurement);

 private:
  using Leaves = std::vector<at::Tensor>;
  [[nodiscard]] std::vector<Leaves> arrivals(const AnyMicrobatch& microbatch);
  [[nodiscard]] LinkCosts measure_link(const AnyMicrobatch& microbatch) const;
  // Of a CPU, which does not say, what the cut has not allocated: a number below 0.
  [[nodiscard]] double free_bytes() const;

  const UnbuiltJob& job_;
  const std::int64_t num_stages_per_rank_;
  const StagePlacement placement_;
  const std::vector<StageIndex> own_;
  const AllocatedBytes allocated_;  // since before the stages were built
  std::vector<double> held_ = {};   // by each stage: parameters, what FSDP gathers, gradients
  std::vector<std::shared_ptr<AnyModelStage>> model_stages_;
  std::vector<std::shared_ptr<Module>> stages_;  // their modules
  std::shared_ptr<Module> module_;
};

// Collective over the job: returns when all ranks have called it.
void wait_for_all(const DistContext& context);

}  // namespace d9d
