#include "tests/layout/layout_stage.h"

#include <ATen/ATen.h>

#include "d9d/core/tree/tree.h"
#include "d9d/modules/trained_leaves.h"

#include "tests/layout/layout_loss.h"

namespace d9d::test {

std::vector<at::Tensor> LayoutStage::transfer(MicrobatchIndex microbatch, StageBoundary boundary) const {
  const StageInputs inputs = stage_inputs(job_, step_.number(microbatch.value), rows_);
  SequenceTransfer transfer = model_->decoder->stage_transfer(inputs.input, boundary);
  if (step_.mutation == Mutation::kAnnouncedDtype) transfer.hidden_states = transfer.hidden_states.to(at::kFloat);
  return tree_leaves(transfer);
}

std::vector<at::Tensor> LayoutStage::forward(MicrobatchIndex microbatch, const std::vector<at::Tensor>& arrived,
                                             bool /*backward_follows*/) {
  const std::int64_t number = step_.begin(*model_, microbatch.value);
  const StageInputs inputs = stage_inputs(job_, number, rows_);
  SequenceStageInput input = inputs.input;
  if (!arrived.empty()) {
    SequenceTransfer transfer = model_->decoder->stage_transfer(inputs.input, StageBoundary::kIncoming);
    auto next = arrived.begin();
    tree_for_each_leaf(transfer, [&](at::Tensor& leaf) { leaf = *next++; });
    if (step_.mutation == Mutation::kMessageRounded) {
      transfer.hidden_states = transfer.hidden_states.to(at::kFloat).to(transfer.hidden_states.scalar_type());
    }
    if (step_.mutation == Mutation::kAuxiliaryOfStage && transfer.auxiliary_loss) {
      transfer.auxiliary_loss = at::zeros_like(*transfer.auxiliary_loss);
    }
    input = transfer;
  }
  const StagePass pass{.kind = StagePassKind::kForward, .microbatch = microbatch.value};
  step_.gradients->begin_pass(local_, pass);
  const DecoderWithHeads::Output output = model_(input, inputs.shared);
  std::vector<at::Tensor> made;
  if (const auto* const transfer = std::get_if<SequenceTransfer>(&output)) {
    made = tree_leaves(*transfer);
  } else {
    const auto [loss, weight] = stage_loss(std::get<DecoderHeadsOutput>(output), job_, step_.step, number, rows_);
    step_.gradients->add_loss_with_weight(loss, weight);
    made = {loss * weight};
  }
  step_.gradients->end_pass(local_);
  return made;
}

std::vector<at::Tensor> LayoutStage::weights() const { return trained_leaves(*model_); }

void LayoutStage::backward(MicrobatchIndex microbatch, BackwardPart part, bool is_last,
                           const std::function<void()>& compute) {
  if (step_.mutation == Mutation::kStageSumEarly) is_last = microbatch.value == 0;
  step_.phase->begin(Phase::kBackward);
  const StagePass pass{
      .kind = StagePassKind::kBackward, .microbatch = microbatch.value, .part = part, .is_last = is_last};
  step_.gradients->begin_pass(local_, pass);
  compute();
  step_.gradients->end_pass(local_);
}

}  // namespace d9d::test
