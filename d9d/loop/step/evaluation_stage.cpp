#include "d9d/loop/step/evaluation_stage.h"

#include "d9d/loop/step/training_stage.h"
#include "d9d/loop/step/weighted_loss.h"

namespace d9d {

void EvaluationStage::run_last(const AnyModelStage& stage, AnyMicrobatch& microbatch,
                               const std::vector<at::Tensor>& arrived, bool counts) {
  const LossResult result = microbatch.forward_loss(stage, arrived, parts_.schedule);
  const LossWeights& weights = microbatch.loss_weights;
  const WeightedLoss loss =
      with_error_place("in compute_loss", [&] { return weighted_loss(result, {.of = weights, .weight = {}}); });
  if (!counts) return;
  if (weights.empty()) {
    metric_at<MeanMetric>(parts_.losses, "loss").update(loss.loss, loss.weight);
  } else {
    update_loss_means(parts_.losses, loss, weights);
  }
  with_error_place("in update_metrics", [&] { microbatch.update_metrics(parts_.metrics); });
}

}  // namespace d9d
