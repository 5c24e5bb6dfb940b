// Runs the program of one rank of a pipeline: forwards, backwards, and what stages hand to each other.
//
// Example
//   PipelineExecutor executor(context, schedule_of(OneFOneBScheduleConfig{.num_stages_per_rank = 2}));
//   for (const StageIndex stage : executor.stages()) own.push_back(build(stage));     // PipelineStage*
//   executor.run(own, /*num_microbatches=*/8);            // gradients of weights are those of the sum of the losses
//
// Of a microbatch a stage keeps, from its forward to its backward, what arrived and its graph: an output ends when it
// is sent, a gradient when it is used. I is an ordinary backward that leaves the products of the stage's weights() to W
// and keeps what they multiply (core/autograd/deferred_gradients.h). Without a backward nothing is kept. Stages of one
// rank hand transfers to each other without a copy. Composed computations run at once on a GPU, on the current stream
// and one of the executor's (lanes.h); elsewhere one after the other.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "d9d/core/dist_context/dist_context.h"
#include "d9d/pipelining/executor/lanes.h"
#include "d9d/pipelining/executor/pipeline_stage.h"
#include "d9d/pipelining/executor/program_graphs.h"
#include "d9d/pipelining/executor/stage_links.h"
#include "d9d/pipelining/program/rank_plan.h"
#include "d9d/pipelining/schedules/pipeline_schedule.h"

namespace d9d {

class PipelineExecutor {
 public:
  // Collective over the ranks of a pipeline, the axis "pp" of the context's mesh. Programs are built for as many slots
  // as the links have. Throws ConfigError where the schedule cannot place stages on so many ranks.
  PipelineExecutor(const DistContext& context, PipelineSchedule schedule, const StageLinksConfig& links = {});

  [[nodiscard]] const StagePlacement& placement() const { return placement_; }
  // Of this rank, in increasing order.
  [[nodiscard]] const std::vector<StageIndex>& stages() const { return placement_.stages_of(rank_); }

  // Whether computations of this rank run at once in a step of so many microbatches. ConfigError as run().
  [[nodiscard]] bool runs_at_once(std::int64_t num_microbatches);

  // Collective over the ranks of a pipeline. `stages`: those of stages(), borrowed. The context's device and the same
  // number of microbatches on all ranks; shapes may differ between microbatches, and each step may have others.
  //
  // Throws, before any message is sent: ConfigError for a number of microbatches that the schedule cannot run;
  // StateError on all ranks if they have different numbers of microbatches, or neighbours expect different transfers,
  // or, in the first step of so many microbatches, if the schedule gave ranks different programs. On CUDA devices all
  // ranks compare the first step only, since that makes the host wait for the device; in later ones neighbours that
  // share memory throw when the step is queued. StateError for a stage that hands on other tensors than it announced.
  // After an exception of a stage the other ranks must be aborted (launch() and run_ranks() do); nothing is kept of the
  // step, and an executor with several ranks runs no other.
  //
  // graphs: of this number of microbatches and of these stages alone; its first run records. Composed computations then
  // run one after the other.
  void run(const std::vector<PipelineStage*>& stages, std::int64_t num_microbatches, ProgramGraphs* graphs = nullptr);

 private:
  struct Planned {
    RankPlan plan;
    bool has_backward;
    bool has_lanes;    // computations that run at once on a GPU
    std::string text;  // of the program of all ranks, until it is known to be theirs, too
  };
  [[nodiscard]] Planned& plan_for(std::int64_t num_microbatches);
  [[nodiscard]] std::map<std::int64_t, LinkStep> link_steps(const std::map<StageIndex, PipelineStage*>& stages,
                                                            std::int64_t num_microbatches) const;

  const DistContext& context_;
  PipelineSchedule schedule_;
  std::int64_t num_inbox_slots_;
  std::int64_t rank_;  // in the pipeline
  StagePlacement placement_;
  StageLinks links_;
  const std::optional<Lanes> lanes_;       // on GPUs
  std::map<std::int64_t, Planned> plans_;  // by the number of microbatches
  bool has_compared_ = false;
};

}  // namespace d9d
