// Measures a model that is split into stages. Each rank builds its stages as the job will, runs them on the first
// microbatch, and drops them.
//
// Example
//   MeasuredSplit cut({context, config, binding, packs, task, provider, schedule}, StagePlacement::loop(4, 2));
//   if (const auto refusal = cut.build()) return *refusal;
//   cut.measure(measurement);
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "d9d/core/device/allocated_bytes.h"
#include "d9d/loop/config/trainer_config.h"
#include "d9d/loop/step/task_binding.h"
#include "d9d/loop/step/training_stage.h"
#include "d9d/loop/task/job_schedule.h"
#include "d9d/loop/task/providers.h"
#include "d9d/loop/task/task.h"
#include "d9d/pipelining/executor/measure_stage.h"
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
  // `job` is borrowed. placement: of the stages of the whole model on the ranks of a pipeline.
  MeasuredSplit(const UnbuiltJob& job, StagePlacement placement);

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

  // The stages of this rank on the first microbatch, in increasing order.
  struct Running {
    std::vector<TrainingStage>& stages;
    const std::vector<StageSample>& samples;
    const AnyMicrobatch& microbatch;
  };
  // Collective over the job, called after build(); PackReader::peek() must have a microbatch. Calls `work`, which may
  // run the stages, as often as it likes.
  void run_first_microbatch(const std::function<void(const Running&)>& work);
  // Called by such a `work`. Calls run(), which must run a forward and a backward of the stage (its index among those
  // of this rank), and counts the gradients that stay among its resident_bytes().
  void count_gradients(std::size_t stage, const std::function<void()>& run);
  // Returns the bytes that a stage of this rank keeps all the time: its parameters, tensors that FSDP gathers,
  // gradients and, by their size, moments of the optimiser and averages of the weights.
  [[nodiscard]] double resident_bytes(std::size_t stage) const;
  // Returns nine tenths of the memory that is free or held by these stages; none on CPUs.
  [[nodiscard]] std::optional<double> usable_bytes() const;
  [[nodiscard]] double held_bytes() const;  // by these stages now, without moments and averages
  [[nodiscard]] const std::vector<std::shared_ptr<Module>>& modules() const { return stages_; }

 private:
  using Leaves = std::vector<at::Tensor>;
  [[nodiscard]] std::vector<Leaves> arrivals(const AnyMicrobatch& microbatch);
  [[nodiscard]] LinkCosts measure_link(const AnyMicrobatch& microbatch) const;
  // Returns the free device memory in bytes. On a CPU it returns minus the bytes that were allocated since the
  // constructor, so that differences are right there too.
  [[nodiscard]] double free_bytes() const;

  const UnbuiltJob& job_;
  const StagePlacement placement_;
  const std::vector<StageIndex> own_;
  const AllocatedBytes allocated_;  // allocations since the constructor
  std::vector<double> held_ = {};   // bytes per stage: parameters, gathered tensors, gradients
  std::vector<std::shared_ptr<AnyModelStage>> model_stages_;
  std::vector<std::shared_ptr<Module>> stages_;  // the modules of model_stages_
  std::shared_ptr<Module> module_;
};

// Collective. Returns the number of microbatches of this rank in the first step. Throws ConfigError if a rank has none.
// key: what is measured for, in messages. remedy: what else to do.
[[nodiscard]] std::int64_t num_microbatches_to_measure(const UnbuiltJob& job, std::string_view key,
                                                       std::string_view remedy);

// Frees the memory that the allocator has cached for dropped stages, and resets its peak statistics.
void forget_measurement(c10::Device device);

// Collective over the job: returns when all ranks have called it.
void wait_for_all(const DistContext& context);

}  // namespace d9d
