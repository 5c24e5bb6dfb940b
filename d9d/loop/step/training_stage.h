// A stage of this rank as the pipeline executor trains it: it provides the inputs, computes the loss, accumulates
// gradients, and adds step and microbatch to errors. ProgramRun (pipelining/executor) calls for each microbatch
//
//   begin_forward()    the random clock; units of FSDP are told that a forward begins
//   forward()          model, TrainTask::compute_loss; the last stage returns loss * weight
//   end_forward()      adds the loss to those of the step: here, since a replayed graph does not call forward()
//   backward()         calls back into ProgramRun, which runs autograd from the loss or the received gradient
//   after_backward()   metrics of the microbatch
//
// Example
//   TrainingStage stage(stage_job_of(job), *job.model_stages[0], {.local = 0}, step);
//   executor.run({&stage}, num_microbatches);
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "d9d/base/check.h"
#include "d9d/core/autograd/checkpoint.h"
#include "d9d/core/error/error_place.h"
#include "d9d/loop/checks/first_step_checks.h"
#include "d9d/loop/step/gradient_manager.h"
#include "d9d/loop/step/microbatch.h"
#include "d9d/loop/step/step_graphs.h"
#include "d9d/loop/step/training_job.h"
#include "d9d/loop/step/weighted_loss.h"
#include "d9d/pipelining/executor/pipeline_stage.h"

namespace d9d {

// The parts of a job that its stages use. All are borrowed.
struct StageJob {
  const JobSchedule& schedule;
  RandomClock& clock;
  const MetricMap& metrics;
  const MetricMap& loss_means;  // TrainingJob::loss_means
};
[[nodiscard]] StageJob stage_job_of(const TrainingJob& job);

// The microbatches that one call of PipelineExecutor::run() computes: all of a step, or a single one (step_graphs.h).
// train_pack() sets it before the call.
struct ExecutedMicrobatches {
  std::size_t first = 0;       // index in StepMicrobatches::pack of the first of them
  bool are_last = true;        // of the step
  bool keep_inputs = false;    // whether inputs live until that call ends (PipelineStage::forward)
  StepGraph* graph = nullptr;  // borrowed; null unless their computations are captured or replayed
};

// The microbatches of a step. MicrobatchRunner sets all but `executed`.
struct StepMicrobatches {
  MicrobatchPack pack = {};
  GradientManager* gradients = nullptr;  // borrowed
  FirstStep* first_step = nullptr;       // borrowed; null after the first step
  ExecutedMicrobatches executed = {};
  std::vector<WeightedLoss> losses = {};  // of each microbatch on the last stage, detached; set by forward
};

struct TrainingStagePlace {
  std::size_t local = 0;  // index among the stages of this rank
  bool is_last_of_rank = true;
};

// Runs `work` and adds to its errors the microbatch and the step, `stage` if the model has several, and `place` if no
// inner code has named a place.
template <class Work>
auto in_microbatch(std::size_t index, const JobSchedule& schedule, const std::string& place, const Work& work,
                   const std::string& stage = "") {
  try {
    return with_error_place(place, work);
  } catch (const std::exception&) {
    add_error_place(cat(stage, "microbatch ", index, " of step ", schedule.current_step()));
    throw;
  }
}

// Returns forward(). Throws StateError if it ran a backward, which must be left to the loop.
template <class Forward>
auto without_backward(const Forward& forward) {
  const std::int64_t num_before = num_backwards();
  auto result = forward();
  D9D_CHECK(num_backwards() == num_before, StateError,
            "[loop::task] expected forward and compute_loss to leave the backward to the loop, got one of their own, ",
            "to which the loop's would be added. Return the loss instead.");
  return result;
}

// Creates a mean in `loss_means` for each name in `weights` that has none. A task with one loss has no names.
void name_loss_means(MetricMap& loss_means, const LossWeights& weights);
// Adds the losses of a microbatch to these means.
void update_loss_means(const MetricMap& loss_means, const WeightedLoss& loss, const LossWeights& weights);

// Returns AnyMicrobatch::transfer(). Throws StateError if a tensor of it is undefined. index: of the microbatch.
[[nodiscard]] std::vector<at::Tensor> checked_transfer(const AnyMicrobatch& microbatch, std::int64_t index,
                                                       const AnyModelStage& stage, StageBoundary boundary);

class TrainingStage : public PipelineStage {
 public:
  // All arguments are borrowed.
  TrainingStage(const StageJob& job, const AnyModelStage& stage, TrainingStagePlace place, StepMicrobatches& step)
      : job_(job), stage_(stage), place_(place), step_(step) {}

  [[nodiscard]] std::vector<at::Tensor> transfer(MicrobatchIndex microbatch, StageBoundary boundary) const override;
  [[nodiscard]] std::vector<at::Tensor> forward(MicrobatchIndex microbatch, const std::vector<at::Tensor>& arrived,
                                                bool backward_follows) override;
  void begin_forward(MicrobatchIndex microbatch) override;
  void end_forward(MicrobatchIndex microbatch) override;
  [[nodiscard]] std::vector<at::Tensor> weights() const override;
  void backward(MicrobatchIndex microbatch, BackwardPart part, bool is_last,
                const std::function<void()>& compute) override;
  void after_backward(MicrobatchIndex microbatch, BackwardPart part) override;

 protected:
  // Called after the forward of the last stage: adds the microbatch's loss to those of the step.
  virtual void add_loss(const AnyMicrobatch& microbatch, WeightedLoss& loss);

 private:
  // Converts the index of a microbatch in the run to its index in the step.
  [[nodiscard]] std::size_t index_in_step(MicrobatchIndex microbatch) const {
    return step_.executed.first + static_cast<std::size_t>(microbatch.value);
  }
  [[nodiscard]] AnyMicrobatch& at(MicrobatchIndex microbatch) const { return *step_.pack[index_in_step(microbatch)]; }
  [[nodiscard]] WeightedLoss& loss_of(MicrobatchIndex microbatch);
  [[nodiscard]] std::string stage_text() const;  // for in_microbatch()
  [[nodiscard]] std::vector<at::Tensor> inner_forward(MicrobatchIndex microbatch,
                                                      const std::vector<at::Tensor>& arrived);
  [[nodiscard]] at::Tensor loss(MicrobatchIndex microbatch, const std::vector<at::Tensor>& arrived);
  [[nodiscard]] bool is_captured() const { return step_.executed.graph != nullptr; }
  [[nodiscard]] bool is_being_captured() const { return is_captured() && !step_.executed.graph->is_captured(); }
  void run_backward(MicrobatchIndex microbatch, BackwardPart part, bool is_last, const std::function<void()>& compute);
  void take_state_after_replay(MicrobatchIndex microbatch);

  const StageJob job_;
  const AnyModelStage& stage_;
  const TrainingStagePlace place_;
  StepMicrobatches& step_;
};

}  // namespace d9d
