// A stage of this rank as the pipeline executor evaluates it: forwards without gradients, losses and metrics. It does
// not call the gradient protocol, so it leaves no trace in training.
//
// Example
//   EvaluatedPack pack{.set = "validation", .microbatches = std::move(*packs->next()), .num_counted = 2};
//   EvaluationStage stage({.schedule = schedule, .clock = clock, .losses = losses, .metrics = metrics},
//                         *job.model_stages[0], /*is_last_of_rank=*/true, pack);
//   const at::NoGradGuard no_grad;
//   executor.run({&stage}, std::ssize(pack.microbatches));
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "d9d/loop/step/microbatch.h"
#include "d9d/loop/task/job_schedule.h"
#include "d9d/metrics/metric.h"
#include "d9d/pipelining/executor/pipeline_stage.h"

namespace d9d {

// The microbatches of one pack of an evaluation set.
struct EvaluatedPack {
  std::string set = {};
  std::int64_t index = 0;  // of the pack in the set
  MicrobatchPack microbatches = {};
  // The first so many count. The others are computed because other ranks have more, and change no loss and no metric.
  std::size_t num_counted = 0;
};

// The parts of an evaluation that its stages use. All are borrowed.
struct EvaluationParts {
  const JobSchedule& schedule;
  RandomClock& clock;
  // The mean of the task's loss as "loss", or of each of several losses as "loss/<name>".
  const MetricMap& losses;
  const MetricMap& metrics;
};

// Runs `work` and adds to its errors the microbatch, the pack and the set.
template <class Work>
auto in_evaluated_microbatch(const EvaluatedPack& pack, std::size_t index, const std::string& place, const Work& work) {
  try {
    return with_error_place(place, work);
  } catch (const std::exception&) {
    add_error_place(cat("microbatch ", index, " of pack ", pack.index, " of the evaluation set '", pack.set, "'"));
    throw;
  }
}

class EvaluationStage final : public PipelineStage {
 public:
  // All arguments are borrowed. is_last_of_rank: no later stage of this rank uses a microbatch's inputs.
  EvaluationStage(const EvaluationParts& parts, const AnyModelStage& stage, bool is_last_of_rank, EvaluatedPack& pack)
      : parts_(parts), stage_(stage), is_last_of_rank_(is_last_of_rank), pack_(pack) {}

  [[nodiscard]] std::vector<at::Tensor> transfer(MicrobatchIndex microbatch, StageBoundary boundary) const override;
  [[nodiscard]] std::vector<at::Tensor> forward(MicrobatchIndex microbatch, const std::vector<at::Tensor>& arrived,
                                                bool backward_follows) override;
  void begin_forward(MicrobatchIndex microbatch) override;
  void end_forward(MicrobatchIndex microbatch) override;

 private:
  [[nodiscard]] AnyMicrobatch& at(MicrobatchIndex microbatch) const {
    return *pack_.microbatches[static_cast<std::size_t>(microbatch.value)];
  }
  void evaluate(MicrobatchIndex microbatch, const std::vector<at::Tensor>& arrived);

  const EvaluationParts parts_;
  const AnyModelStage& stage_;
  const bool is_last_of_rank_;
  EvaluatedPack& pack_;
};

}  // namespace d9d
