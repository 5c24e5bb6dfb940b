#include "d9d/loop/measure/measured_stage.h"

#include <utility>

#include <ATen/ATen.h>

#include "d9d/core/tree/tree.h"
#include "d9d/modules/trained_leaves.h"

namespace d9d {

MeasuredStage::MeasuredStage(const MeasuredStep& step, ModelStage<LanguageModelTypes> stage, std::size_t local,
                             StageIndex index, const TokenBatch& batch)
    : step_(step),
      stage_(std::move(stage)),
      local_(local),
      index_(index),
      inputs_(step.task.build_forward_inputs(batch)),
      schedule_(/*total_steps=*/1) {}

// Tensors of the right sizes that stand for no memory, also where memory of the meta device is counted.
std::vector<at::Tensor> MeasuredStage::transfer(MicrobatchIndex /*microbatch*/, StageBoundary boundary) const {
  std::vector<at::Tensor> leaves = tree_leaves(stage_.part.transfer(inputs_.input, boundary));
  for (at::Tensor& leaf : leaves) leaf = at::empty({}, leaf.options()).expand(leaf.sizes());
  return leaves;
}

std::vector<at::Tensor> MeasuredStage::forward(MicrobatchIndex microbatch, const std::vector<at::Tensor>& arrived,
                                               bool backward_follows) {
  if (stage_.module->backward_follows() != backward_follows) stage_.module->set_backward_follows(backward_follows);
  const bool is_one_stage = step_.num_stages == 1;
  is_one_stage ? step_.gradients.begin_microbatch(microbatch.value + 1 == step_.num_microbatches)
               : step_.gradients.begin_forward(local_, microbatch.value);
  using Arrived = ModelPart<LanguageModelTypes>::Arrived;
  Arrived input(std::in_place_index<0>, inputs_.input);
  if (!is_first()) {
    const auto like = tree_flatten(stage_.part.transfer(inputs_.input, StageBoundary::kIncoming));
    input = tree_unflatten(like.spec, arrived);
  }
  std::vector<at::Tensor> made;
  if (is_last()) {
    const auto output =
        is_one_stage ? stage_.forward(inputs_.input, inputs_.shared) : stage_.part.last_forward(input, inputs_.shared);
    LanguageModelState state = inputs_.state;
    const LossResult result = step_.task.compute_loss(output, state, schedule_);
    made = {result.loss.mul(result.loss_weight.value())};
  } else {
    made = tree_leaves(stage_.part.forward(input, inputs_.shared));
  }
  if (!is_one_stage) step_.gradients.end_forward(local_, microbatch.value);
  return made;
}

std::vector<at::Tensor> MeasuredStage::weights() const { return trained_leaves(*stage_.module); }

void MeasuredStage::backward(MicrobatchIndex microbatch, BackwardPart part, bool is_last,
                             const std::function<void()>& compute) {
  const bool is_one_stage = step_.num_stages == 1;
  if (!is_one_stage) step_.gradients.begin_backward(local_, microbatch.value, part, is_last);
  compute();
  is_one_stage ? step_.gradients.end_microbatch() : step_.gradients.end_backward(local_);
}

}  // namespace d9d
