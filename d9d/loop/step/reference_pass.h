// Runs the microbatches of a step, or of an evaluation's pack, through the reference model of a task, which reads the
// outputs (TrainTask::take_reference). The forwards are those of an evaluation: in the stages of the pipeline, without
// gradients, in evaluation mode, and without a trace in training.
//
// Example
//   ReferencePass reference(job);                          // job.reference is set
//   gradients.begin_evaluation();
//   reference.run(pack, "step 3");                         // pack: with inputs, which it keeps
//   gradients.end_evaluation();
#pragma once

#include <string>
#include <vector>

#include "d9d/loop/step/forward_stage.h"
#include "d9d/loop/step/training_job.h"
#include "d9d/pipelining/executor/pipeline_executor.h"

namespace d9d {

class ReferencePass {
 public:
  // Collective over the ranks of a pipeline. job: borrowed.
  explicit ReferencePass(const TrainingJob& job);
  ReferencePass(const ReferencePass&) = delete;
  ReferencePass& operator=(const ReferencePass&) = delete;

  // Collective over the ranks of a pipeline. Called between GradientManager::begin_evaluation() and end_evaluation().
  // what: of which the microbatches are, for errors.
  void run(MicrobatchPack& microbatches, const std::string& what);

 private:
  void run_forwards_of(const std::vector<std::shared_ptr<AnyModelStage>>& stages, ForwardPack& pack);
  void run_copy(ForwardPack& pack);

  const TrainingJob& job_;
  PipelineExecutor executor_;
  OffloadHooks asleep_{[this] { executor_.close(); }};
  const OffloadList::Membership membership_ = job_.offloads->add(asleep_, {SleepTag::kTensorStates, SleepTag::kComms});
};

}  // namespace d9d
