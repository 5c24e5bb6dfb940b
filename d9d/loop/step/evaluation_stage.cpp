#include "d9d/loop/step/evaluation_stage.h"

#include "d9d/loop/step/training_stage.h"
#include "d9d/loop/step/weighted_loss.h"

namespace d9d {

std::vector<at::Tensor> EvaluationStage::transfer(MicrobatchIndex microbatch, StageBoundary boundary) const {
  return checked_transfer(at(microbatch), microbatch.value, stage_, boundary);
}

void EvaluationStage::begin_forward(MicrobatchIndex microbatch) {
  parts_.clock.microbatch = {.step = static_cast<std::uint64_t>(pack_.index), .number = at(microbatch).number};
}

std::vector<at::Tensor> EvaluationStage::forward(MicrobatchIndex microbatch, const std::vector<at::Tensor>& arrived,
                                                 bool /*backward_follows*/) {
  Module& module = *stage_.module;
  if (module.backward_follows()) module.set_backward_follows(false);
  const auto run = [&]() -> std::vector<at::Tensor> {
    if (!stage_.info.is_last()) return at(microbatch).forward(stage_, arrived);
    evaluate(microbatch, arrived);
    return {};
  };
  return in_evaluated_microbatch(pack_, static_cast<std::size_t>(microbatch.value), "in evaluation", run);
}

void EvaluationStage::evaluate(MicrobatchIndex index, const std::vector<at::Tensor>& arrived) {
  AnyMicrobatch& microbatch = at(index);
  const LossResult result = microbatch.forward_loss(stage_, arrived, parts_.schedule);
  const LossWeights& weights = microbatch.loss_weights;
  const WeightedLoss loss =
      with_error_place("in compute_loss", [&] { return weighted_loss(result, {.of = weights, .weight = {}}); });
  if (static_cast<std::size_t>(index.value) >= pack_.num_counted) return;
  if (weights.empty()) {
    static_cast<MeanMetric&>(*parts_.losses.at("loss")).update(loss.loss, loss.weight);
  } else {
    update_loss_means(parts_.losses, loss, weights);
  }
  with_error_place("in update_metrics", [&] { microbatch.update_metrics(parts_.metrics); });
}

void EvaluationStage::end_forward(MicrobatchIndex microbatch) {
  if (is_last_of_rank_) at(microbatch).drop_inputs();
}

}  // namespace d9d
