#include "d9d/loop/step/reference_pass.h"

#include <utility>

#include <ATen/core/grad_mode.h>

#include "d9d/core/device/named_range.h"
#include "d9d/loop/step/random_numbers_of_training.h"
#include "d9d/modules/eval_scope.h"
#include "d9d/modules/gradient_reduction.h"
#include "d9d/peft/without_adapters.h"
#include "d9d/pipelining/schedules/pipeline_schedule.h"

namespace d9d {
namespace {

class ReferenceStage final : public ForwardStage {
 public:
  using ForwardStage::ForwardStage;
  void end_forward(MicrobatchIndex) override {}  // the model that is trained needs the inputs too

 private:
  void run_last(const AnyModelStage& stage, AnyMicrobatch& microbatch, const std::vector<at::Tensor>& arrived,
                bool /*counts*/) override {
    microbatch.take_reference(stage, arrived);
  }
};

}  // namespace

ReferencePass::ReferencePass(const TrainingJob& job)
    : job_(job), executor_(job.context, forwards_on(job.placement), {.method = job.config.pipelining.messages}) {}

void ReferencePass::run(MicrobatchPack& microbatches, const std::string& what) {
  const NamedRange range("reference");
  const at::NoGradGuard no_grad;  // not InferenceMode, whose tensors compute_loss() could not use
  const RandomNumbersOfTraining numbers(job_);
  ForwardPack pack{.name = "the reference of " + what, .microbatches = std::move(microbatches)};
  if (job_.reference->copy.empty()) {
    const EvalScope eval(job_.stages);
    const WithoutAdapters base(job_.stages);
    run_forwards_of(job_.model_stages, pack);
  } else {
    run_copy(pack);
  }
  microbatches = std::move(pack.microbatches);
}

void ReferencePass::run_copy(ForwardPack& pack) {
  std::vector<std::shared_ptr<GradientReduction>> reductions;
  for (const auto& stage : job_.reference->copy) {
    for (const auto& reduction : gradient_reductions(*stage->module)) reductions.push_back(reduction);
  }
  for (const auto& reduction : reductions) reduction->begin_evaluation();
  run_forwards_of(job_.reference->copy, pack);
  for (const auto& reduction : reductions) reduction->end_evaluation();
}

void ReferencePass::run_forwards_of(const std::vector<std::shared_ptr<AnyModelStage>>& stages, ForwardPack& pack) {
  run_forwards<ReferenceStage>(executor_, *job_.clock, stages, pack);
}

}  // namespace d9d
