// A stage of this rank in an evaluation: losses and metrics of the last stage.
//
// Example
//   ForwardPack pack{.name = "pack 0 of the evaluation set 'validation'", .microbatches = std::move(*packs->next()),
//                    .num_counted = 2};
//   EvaluationStage stage(clock, *job.model_stages[0], /*is_last_of_rank=*/true, pack,
//                         {.schedule = schedule, .losses = losses, .metrics = metrics});
//   const at::NoGradGuard no_grad;
//   executor.run({&stage}, std::ssize(pack.microbatches));
#pragma once

#include <vector>

#include "d9d/loop/step/forward_stage.h"
#include "d9d/loop/task/job_schedule.h"
#include "d9d/metrics/metric.h"

namespace d9d {

// The parts of an evaluation that its stages use. All are borrowed.
struct EvaluationParts {
  const JobSchedule& schedule;
  // The mean of the task's loss as "loss", or of each of several losses as "loss/<name>".
  const MetricMap& losses;
  const MetricMap& metrics;
};

class EvaluationStage final : public ForwardStage {
 public:
  EvaluationStage(RandomClock& clock, const AnyModelStage& stage, bool is_last_of_rank, ForwardPack& pack,
                  const EvaluationParts& parts)
      : ForwardStage(clock, stage, is_last_of_rank, pack), parts_(parts) {}

 private:
  void run_last(const AnyModelStage& stage, AnyMicrobatch& microbatch, const std::vector<at::Tensor>& arrived,
                bool counts) override;

  const EvaluationParts parts_;
};

}  // namespace d9d
