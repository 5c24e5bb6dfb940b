// Runs the microbatches of a pack in the order of the pipeline schedule. For a model in one stage, the backward of each
// microbatch runs before the forward of the next, so that only one microbatch has activations in memory.
//
//   pack -> TrainTask::build_forward_inputs                       all microbatches
//        -> forward of the reference -> take_reference            all microbatches, if the task has one
//        -> forward -> compute_loss -> backward -> update_metrics  last stage; the others: forward, backward
//
// Example
//   MicrobatchRunner runner(job, task, packs, /*reference=*/nullptr);
//   while (runner.fetch()) runner.run(gradients);
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <vector>

#include "d9d/loop/checks/equal_microbatches.h"
#include "d9d/loop/checks/first_step_checks.h"
#include "d9d/loop/step/pack_reader.h"
#include "d9d/loop/step/reference_pass.h"
#include "d9d/loop/step/step_graphs.h"
#include "d9d/loop/step/training_job.h"
#include "d9d/loop/step/training_stage.h"
#include "d9d/loop/step/weighted_loss.h"
#include "d9d/pipelining/executor/pipeline_executor.h"

namespace d9d {

class MicrobatchRunner {
 public:
  // Collective over the ranks of a pipeline. All arguments are borrowed. reference: of the task; null: it has none.
  MicrobatchRunner(const TrainingJob& job, const AnyTask& task, PackReader& packs, ReferencePass* reference);
  MicrobatchRunner(const MicrobatchRunner&) = delete;
  MicrobatchRunner& operator=(const MicrobatchRunner&) = delete;

  // Fetches the next pack; false at the end of the data.
  [[nodiscard]] bool fetch();
  // Collective over the ranks of a pipeline. Runs forward and backward of the fetched pack and adds its losses and
  // gradients to `gradients`. Returns the number of its tokens.
  std::int64_t run(GradientManager& gradients);

  // Returns the number of microbatches of the next pack if a thread has read it already, otherwise 0.
  [[nodiscard]] std::int64_t num_next() const;
  // of_ranks: num_next() of each rank, in rank order.
  void tell_next(const std::vector<std::int64_t>& of_ranks) { equal_microbatches_.tell_next(of_ranks); }

  // Returns PackStream::state(), the position in the data after the packs that were fetched so far.
  [[nodiscard]] nlohmann::json data_state() const;
  [[nodiscard]] nlohmann::json task_state() const;  // TrainTask::state()
  [[nodiscard]] GraphCounts graph_counts() const;

 private:
  [[nodiscard]] FirstPack first_pack() const;
  std::int64_t build_inputs();
  void take_reference(GradientManager& gradients);
  void check_order();
  void free_memory();  // collective over the ranks of a pipeline

  const TrainingJob& job_;
  const AnyTask& task_;
  PackReader& packs_;
  ReferencePass* const reference_;
  StepMicrobatches step_;
  EqualMicrobatches equal_microbatches_;
  PipelineExecutor executor_;
  std::vector<TrainingStage> stages_;
  std::set<std::int64_t> checked_orders_;  // numbers of microbatches for which a custom schedule has been checked
  bool is_first_step_ = true;
  std::optional<FirstStep> first_step_;  // only during the first step
  std::optional<StepGraphs> graphs_;     // set if trainer.cuda_graph is
  // Graphs may have captured communication, so they are dropped with the communicators too.
  OffloadHooks asleep_{[this] { free_memory(); }};
  const OffloadList::Membership membership_ = job_.offloads->add(asleep_, {SleepTag::kTensorStates, SleepTag::kComms});
};

}  // namespace d9d
