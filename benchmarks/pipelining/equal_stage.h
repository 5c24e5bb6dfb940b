// Stages of a pipeline that all compute the same: as many layers of a dense Qwen3 each, no embedding and no head.
//
// Example
//   StepRecorder recorder{.device = device};
//   EqualStage stage(inner_layers(layer, 4, tokens, at::kBFloat16, device), inputs, recorder, {2}, /*num_stages=*/4);
//   recorder.begin_step();
//   executor.run({&stage}, num_microbatches);
//   recorder.steps.back().spans;                        // when each of its computations began and ended
#pragma once

#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/core/device/moment.h"
#include "d9d/models/qwen3_dense/model.h"
#include "d9d/pipelining/executor/pipeline_stage.h"

namespace benchmarks {

// A computation of this rank, from where its stream has what it waits for until its last kernel.
struct RecordedSpan {
  d9d::ComputeAction action;
  d9d::Moment begin;
  d9d::Moment end;
};
struct RecordedStep {
  d9d::Moment begin;
  std::vector<RecordedSpan> spans = {};
};

struct StepRecorder {
  c10::Device device = c10::DeviceType::CPU;
  bool is_on = false;
  std::vector<RecordedStep> steps = {};

  void begin_step() { steps.push_back({.begin = d9d::Moment(device)}); }
  void run(const d9d::ComputeAction& action, const std::function<void()>& compute);
};

// Layers with values, of an inner stage. tokens: of a sequence.
[[nodiscard]] d9d::ModulePtr<d9d::Qwen3DenseModel> inner_layers(const d9d::Qwen3DenseLayerParameters& layer,
                                                                std::int64_t num_layers, std::int64_t tokens,
                                                                at::ScalarType dtype, c10::Device device);

struct StageInputs {
  at::Tensor hidden_states;  // [1, S, H], into the first stage and in the loss of the last; no gradients
  at::Tensor position_ids;   // [1, S] int64
};

// The first stage makes gradients of its input as the others do. The last stage's loss is a sum of its output with
// weights.
class EqualStage final : public d9d::PipelineStage {
 public:
  // inputs, recorder: borrowed.
  EqualStage(d9d::ModulePtr<d9d::Qwen3DenseModel> layers, const StageInputs& inputs, StepRecorder& recorder,
             d9d::StageIndex index, std::int64_t num_stages)
      : layers_(std::move(layers)), inputs_(inputs), recorder_(recorder), index_(index), num_stages_(num_stages) {}

  [[nodiscard]] bool is_last() const { return index_.value + 1 == num_stages_; }
  [[nodiscard]] d9d::StageIndex index() const { return index_; }
  [[nodiscard]] std::vector<at::Tensor> transfer(d9d::MicrobatchIndex microbatch,
                                                 d9d::StageBoundary boundary) const override;
  [[nodiscard]] std::vector<at::Tensor> forward(d9d::MicrobatchIndex microbatch, const std::vector<at::Tensor>& arrived,
                                                bool backward_follows) override;
  [[nodiscard]] std::vector<at::Tensor> weights() const override;
  void backward(d9d::MicrobatchIndex microbatch, d9d::BackwardPart part, bool is_last,
                const std::function<void()>& compute) override;

 private:
  const d9d::ModulePtr<d9d::Qwen3DenseModel> layers_;
  const StageInputs& inputs_;
  StepRecorder& recorder_;
  const d9d::StageIndex index_;
  const std::int64_t num_stages_;
};

}  // namespace benchmarks
