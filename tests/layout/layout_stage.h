// A stage of a job's model, as the executor of pipelines trains it.
//
// Example
//   LayoutStage stage(model, /*local=*/0, job, rows, step);
//   executor.run({&stage}, num_microbatches);
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "d9d/loop/step/gradient_manager.h"
#include "d9d/pipelining/executor/pipeline_stage.h"

#include "tests/layout/layout_loss.h"
#include "tests/layout/layout_model.h"
#include "tests/layout/mutation.h"

namespace d9d::test {

// What the stages of a rank share in a step.
struct StageStep {
  std::int64_t step = 0;
  GradientManager* gradients = nullptr;
  PhaseOfRank* phase = nullptr;
  Mutation mutation = Mutation::kNone;
  // Makes the rank's microbatch the one that `model` computes next, and returns its number, counted over the job.
  std::function<std::int64_t(LayoutModel& model, std::int64_t microbatch)> begin = {};
  std::function<std::int64_t(std::int64_t microbatch)> number = {};  // the number alone
};

class LayoutStage final : public PipelineStage {
 public:
  // All are borrowed. local: among the rank's stages.
  LayoutStage(const ModulePtr<LayoutModel>& model, std::size_t local, const LayoutJob& job, const Rows& rows,
              const StageStep& step)
      : model_(model), local_(local), job_(job), rows_(rows), step_(step) {}

  [[nodiscard]] std::vector<at::Tensor> transfer(MicrobatchIndex microbatch, StageBoundary boundary) const override;
  [[nodiscard]] std::vector<at::Tensor> forward(MicrobatchIndex microbatch, const std::vector<at::Tensor>& arrived,
                                                bool backward_follows) override;
  [[nodiscard]] std::vector<at::Tensor> weights() const override;
  void backward(MicrobatchIndex microbatch, BackwardPart part, bool is_last,
                const std::function<void()>& compute) override;

 private:
  const ModulePtr<LayoutModel>& model_;
  std::size_t local_;
  const LayoutJob& job_;
  const Rows& rows_;
  const StageStep& step_;
};

}  // namespace d9d::test
