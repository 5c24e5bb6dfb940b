#include "benchmarks/pipelining/equal_stage.h"

#include <ATen/ATen.h>

#include "d9d/modules/trained_leaves.h"

namespace benchmarks {
namespace {

d9d::ComputeAction action_of(d9d::BackwardPart part, d9d::StageIndex stage, d9d::MicrobatchIndex microbatch) {
  if (part == d9d::BackwardPart::kWhole) return d9d::BackwardAction{stage, microbatch};
  if (part == d9d::BackwardPart::kInput) return d9d::BackwardInputAction{stage, microbatch};
  return d9d::BackwardWeightAction{stage, microbatch};
}

}  // namespace

void StepRecorder::run(const d9d::ComputeAction& action, const std::function<void()>& compute) {
  if (!is_on) return compute();
  const d9d::Moment begin(device);
  compute();
  steps.back().spans.push_back({.action = action, .begin = begin, .end = d9d::Moment(device)});
}

d9d::ModulePtr<d9d::Qwen3DenseModel> inner_layers(const d9d::Qwen3DenseLayerParameters& layer, std::int64_t num_layers,
                                                  std::int64_t tokens, at::ScalarType dtype, c10::Device device) {
  constexpr d9d::PipelineStageInfo kInner{.num_stages = 3, .current_stage = 1};
  const d9d::Qwen3DenseParameters parameters{.layer = layer,
                                             .num_hidden_layers = kInner.num_stages * num_layers,
                                             .rope_base = 1'000'000,
                                             .max_position_ids = tokens};
  auto layers = d9d::make_module<d9d::Qwen3DenseModel>(parameters, d9d::DecoderStageOptions{.stage = kInner});
  layers->to(dtype);
  layers->materialize(device);
  layers->reset_parameters(/*base_seed=*/1);
  return layers;
}

std::vector<at::Tensor> EqualStage::transfer(d9d::MicrobatchIndex, d9d::StageBoundary) const {
  return {at::empty_like(inputs_.hidden_states, at::TensorOptions(at::kMeta))};
}

std::vector<at::Tensor> EqualStage::forward(d9d::MicrobatchIndex microbatch, const std::vector<at::Tensor>& arrived,
                                            bool backward_follows) {
  at::Tensor made;
  recorder_.run(d9d::ForwardAction{index_, microbatch}, [&] {
    if (layers_->backward_follows() != backward_follows) layers_->set_backward_follows(backward_follows);
    const at::Tensor input = arrived.empty() ? inputs_.hidden_states.detach().requires_grad_() : arrived.front();
    made = layers_(d9d::SequenceStageInput(d9d::SequenceTransfer{.hidden_states = input}),
                   d9d::SequenceShared{.position_ids = inputs_.position_ids})
               .hidden_states;
    if (is_last()) made = at::dot(made.flatten(), inputs_.hidden_states.flatten());
  });
  return {made};
}

std::vector<at::Tensor> EqualStage::weights() const { return d9d::trained_leaves(*layers_); }

void EqualStage::backward(d9d::MicrobatchIndex microbatch, d9d::BackwardPart part, bool /*is_last*/,
                          const std::function<void()>& compute) {
  recorder_.run(action_of(part, index_, microbatch), compute);
}

}  // namespace benchmarks
