// Measures a model that is split into a given number of stages. Each rank builds its stages as the job will, runs them
// on the first microbatch, and drops them.
//
// Example
//   MeasuredSplit cut({context, config, binding, packs, task, provider, schedule}, /*num_stages_per_rank=*/2);
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

// A job before its model is built. All members are borrowed.
struct UnbuiltJob {
  const DistContext& context;
  const TrainerConfig& config;
  TaskBinding& binding;
  PackReader& packs;
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

class MeasuredSplit {
 public:
  // `job` is borrowed.
  MeasuredSplit(const UnbuiltJob& job, std::int64_t num_stages_per_rank);

  // Collective over the job. Builds the stages of this rank. If the provider throws a ConfigError on some rank, returns
  // its text, which says why the model cannot be split this way; otherwise returns none. Parameters have their initial
  // values, even if the job reads a checkpoint.
  [[nodiscard]] std::optional<std::string> build();
  // Called after build(). Returns the layer distribution that the model declares; none if it declares none.
  [[nodiscard]] std::optional<LayerDistribution> layers() const { return model_stages_.front()->layers; }
  // Collective over the job, called after build(); PackReader::peek() must have a microbatch. Adds to `measurement` the
  // costs of this rank's stages, those of the link to the next rank if `measurement` has no stages yet and, with two
  // stages per rank, the overlap of composed computations. Sets device_bytes to nine tenths of the memory that is free
  // or held by these stages, if that is less than before. Errors name the stage that throws.
  void measure(RankMeasurement& measurement);

 private:
  using Leaves = std::vector<at::Tensor>;
  [[nodiscard]] std::vector<Leaves> arrivals(const AnyMicrobatch& microbatch);
  [[nodiscard]] LinkCosts measure_link(const AnyMicrobatch& microbatch) const;
  // Returns the free device memory in bytes. On a CPU it returns minus the bytes that were allocated since the
  // constructor, so that differences are right there too.
  [[nodiscard]] double free_bytes() const;

  const UnbuiltJob& job_;
  const std::int64_t num_stages_per_rank_;
  const StagePlacement placement_;
  const std::vector<StageIndex> own_;
  const AllocatedBytes allocated_;  // allocations since the constructor
  std::vector<double> held_ = {};   // bytes per stage: parameters, gathered tensors, gradients
  std::vector<std::shared_ptr<AnyModelStage>> model_stages_;
  std::vector<std::shared_ptr<Module>> stages_;  // the modules of model_stages_
  std::shared_ptr<Module> module_;
};

// Collective over the job: returns when all ranks have called it.
void wait_for_all(const DistContext& context);

}  // namespace d9d
