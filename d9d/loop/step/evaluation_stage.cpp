#include "d9d/loop/step/evaluation_stage.h"

#include "d9d/loop/step/training_stage.h"
#include "d9d/loop/step/weighted_loss.h"
#include "d9d/metrics/aggregates.h"

namespace d9d {

void EvaluationStage::run_last(const AnyModelStage& stage, AnyMicrobatch& microbatch,
                               const std::vector<at::Tensor>& arrived, bool counts) {
  const LossResult result = microbatch.forward_loss(stage, arrived, parts_.schedule);
  const LossWeights& weights = microbatch.loss_weights;
  const WeightedLoss loss =
      with_error_place("in compute_loss", [&] { return weighted_loss(result, {.of = weights, .weight = {}}); });
  if (!counts) return;
  if (weights.empty()) {
    metric_at<MeanMetric>(parts_.losses, "loss").update(loss.loss, marked_if_negative(loss.weight.to(at::kDouble)));
  }
  for (const auto& [name, own] : loss.losses) {
    metric_at<MeanMetric>(parts_.losses, "loss/" + name)
        .update(own, marked_if_negative(weights.at(name).to(at::kDouble)));
  }
  with_error_place("in update_metrics", [&] { microbatch.update_metrics(parts_.metrics); });
}

}  // namespace d9d
