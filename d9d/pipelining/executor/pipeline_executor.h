// Runs the program of one rank of a pipeline: forwards, backwards and the transfers between stages.
//
// Example
//   PipelineExecutor executor(context, schedule_of(OneFOneBScheduleConfig{.num_stages_per_rank = 2}));
//   for (const StageIndex stage : executor.stages()) own.push_back(build(stage));     // PipelineStage*
//   executor.run(own, /*num_microbatches=*/8);            // gradients of weights are those of the sum of the losses
//
// From the forward to the backward of a microbatch a stage keeps the microbatch's inputs and its autograd graph. An
// output is freed when it has been sent, a gradient when it has been used. I is an ordinary backward that defers the
// gradients of the stage's weights() to W and keeps the tensors that they are computed from
// (core/autograd/deferred_gradients.h). In a program without a backward nothing is kept. Transfers between stages of
// one rank are not copied. On a GPU composed computations run at the same time, on the current stream and on a stream
// of the executor (compute_streams.h); elsewhere they run one after the other.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "d9d/core/dist_context/dist_context.h"
#include "d9d/pipelining/executor/compute_streams.h"
#include "d9d/pipelining/executor/pipeline_stage.h"
#include "d9d/pipelining/executor/program_graphs.h"
#include "d9d/pipelining/executor/stage_links.h"
#include "d9d/pipelining/program/rank_plan.h"
#include "d9d/pipelining/schedules/pipeline_schedule.h"

namespace d9d {

class PipelineExecutor {
 public:
  // Collective over the ranks of a pipeline, the axis "pp" of the context's mesh. Programs are built for as many
  // receive buffers as `links` has. Throws ConfigError if the schedule cannot place stages on this number of ranks.
  PipelineExecutor(const DistContext& context, PipelineSchedule schedule, const StageLinksConfig& links = {});

  [[nodiscard]] const StagePlacement& placement() const { return placement_; }
  // Returns the stages of this rank, in increasing order.
  [[nodiscard]] const std::vector<StageIndex>& stages() const { return placement_.stages_of(rank_); }

  // Returns whether any computations of this rank run at the same time in a step with num_microbatches. Throws
  // ConfigError for a number that the schedule cannot run.
  [[nodiscard]] bool runs_at_once(std::int64_t num_microbatches);

  // Collective over the ranks of a pipeline. stages: one for each index in stages(), in the same order, borrowed. All
  // compute on the context's device. num_microbatches: the same on all ranks. Shapes may differ between microbatches
  // and between steps.
  //
  // Throws before any message is sent: ConfigError for a number of microbatches that the schedule cannot run;
  // StateError on all ranks if their numbers of microbatches differ, if neighbours expect different transfers, or, in
  // the first step with this number of microbatches, if the schedule has built different programs on the ranks. On CUDA
  // all ranks compare transfers in the first step only, since that makes the host wait for the device; in later steps
  // neighbours that share memory throw when the step has been queued. Throws StateError if a stage returns other
  // tensors than it announced. After an exception of a stage the other ranks must be aborted (launch() and run_ranks()
  // do that); nothing of the step is kept, and an executor with several ranks cannot run another step.
  //
  // graphs: the first run records them, later runs replay them; use them only with the same stages and
  // num_microbatches. With graphs, composed computations run one after the other.
  void run(const std::vector<PipelineStage*>& stages, std::int64_t num_microbatches, ProgramGraphs* graphs = nullptr);

  // Collective over the ranks of a pipeline, between runs: gives the memory of messages back. The next run() allocates
  // it again.
  void close() { links_.close(); }

 private:
  struct Planned {
    RankPlan plan;
    bool has_backward;
    bool has_two_streams;  // whether computations run at the same time on a GPU
    std::string text;      // the program of all ranks; empty once the ranks have compared it
  };
  [[nodiscard]] Planned& plan_for(std::int64_t num_microbatches);
  [[nodiscard]] std::map<std::int64_t, LinkStep> link_steps(const std::map<StageIndex, PipelineStage*>& stages,
                                                            std::int64_t num_microbatches) const;

  const DistContext& context_;
  PipelineSchedule schedule_;
  std::int64_t num_inbox_slots_;
  std::int64_t rank_;  // this rank's index in the pipeline
  StagePlacement placement_;
  StageLinks links_;
  const std::optional<ComputeStreams> streams_;  // only on GPUs
  std::map<std::int64_t, Planned> plans_;        // keyed by the number of microbatches
  bool has_compared_ = false;
};

}  // namespace d9d
