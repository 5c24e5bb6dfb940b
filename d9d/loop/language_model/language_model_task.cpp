#include "d9d/loop/language_model/language_model_task.h"

#include <utility>

#include <ATen/ATen.h>

#include "d9d/base/ignore_index.h"
#include "d9d/parallelism/context/parallelize_context_parallel.h"

namespace d9d {

LanguageModelTask::LanguageModelTask(const DistContext& context, LanguageModelTaskOptions options)
    : positions_(context_parallel_cut(context.mesh(MeshDomain::kBatch).slice({"cp"}))), options_(options) {}

ForwardInputs<LanguageModelTypes> LanguageModelTask::build_forward_inputs(const TokenBatch& batch) {
  DecoderInputs inputs = decoder_inputs(batch, positions_, options_);
  const at::Tensor num_predicted = inputs.shared.head.labels.ne(kIgnoreIndex).sum();
  return {.input = std::move(inputs.input),
          .shared = std::move(inputs.shared),
          .state = {num_predicted},
          .num_tokens = inputs.num_tokens};
}

// Divides the sum and not each token's loss. The loop multiplies the result by its weight, num_predicted, so the
// gradient of each token's loss is then one expanded number, 1, by which linear_cross_entropy need not multiply.
LossResult LanguageModelTask::compute_loss(const Output& output, LanguageModelState& state, const JobSchedule&) {
  at::Tensor loss = output.head.cross_entropy.sum() / state.num_predicted.clamp_min(1);
  if (output.auxiliary_loss) loss = loss + *output.auxiliary_loss;
  return {.loss = loss, .loss_weight = state.num_predicted};
}

void LanguageModelTask::update_metrics(const LanguageModelState& state, const MetricMap& metrics) {
  metric_at<SumMetric>(metrics, "num_predicted").update(state.num_predicted);
}

}  // namespace d9d
