// One stage of a language model as an executor of pipelines runs it, without data: token ids are whatever memory holds
// on the meta device, and zeros elsewhere. Losses are not kept.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "d9d/loop/language_model/language_model_task.h"
#include "d9d/loop/step/gradient_manager.h"
#include "d9d/loop/task/model_stage.h"
#include "d9d/pipelining/executor/pipeline_stage.h"

namespace d9d {

// What the stages of a rank share; borrowed by them.
struct MeasuredStep {
  LanguageModelTask& task;
  GradientManager& gradients;
  std::int64_t num_microbatches = 1;
  std::int64_t num_stages = 1;
};

class MeasuredStage final : public PipelineStage {
 public:
  // local: among the rank's stages.
  MeasuredStage(const MeasuredStep& step, ModelStage<LanguageModelTypes> stage, std::size_t local, StageIndex index,
                const TokenBatch& batch);

  [[nodiscard]] std::vector<at::Tensor> transfer(MicrobatchIndex microbatch, StageBoundary boundary) const override;
  [[nodiscard]] std::vector<at::Tensor> forward(MicrobatchIndex microbatch, const std::vector<at::Tensor>& arrived,
                                                bool backward_follows) override;
  [[nodiscard]] std::vector<at::Tensor> weights() const override;
  void backward(MicrobatchIndex microbatch, BackwardPart part, bool is_last,
                const std::function<void()>& compute) override;

  [[nodiscard]] bool is_first() const { return index_.value == 0; }
  [[nodiscard]] bool is_last() const { return index_.value + 1 == step_.num_stages; }

 private:
  const MeasuredStep& step_;
  ModelStage<LanguageModelTypes> stage_;
  std::size_t local_;
  StageIndex index_;
  ForwardInputs<LanguageModelTypes> inputs_;
  JobSchedule schedule_;
};

}  // namespace d9d
