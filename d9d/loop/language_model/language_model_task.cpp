#include "d9d/loop/language_model/language_model_task.h"

#include <optional>

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/parallelism/context/parallelize_context_parallel.h"

namespace d9d {

LanguageModelTask::LanguageModelTask(const DistContext& context, LanguageModelTaskOptions options)
    : positions_(context.mesh(MeshDomain::kBatch).slice({"cp"})), options_(options) {}

ForwardInputs<LanguageModelTypes> LanguageModelTask::build_forward_inputs(const TokenBatch& batch) {
  const auto here = [&](const at::Tensor& x) { return context_parallel_shard(x, /*dim=*/1, positions_); };
  const at::Tensor ids = here(batch.input_ids);
  const at::Tensor labels = here(batch.labels);
  const std::int64_t length = ids.size(1);
  std::optional<at::Tensor> real = real_positions(batch, positions_.index() * length, length, ids.device());
  const std::int64_t num_tokens = real ? real->size(0) : ids.numel();
  if (!options_.tells_padding) real.reset();
  D9D_CHECK(!batch.packed || positions_.num_ranks() == 1, ConfigError,
            "[loop::LanguageModelTask] expected context parallelism of 1 with packed sequences, got ",
            positions_.num_ranks(), ". Choose the view \"documents\" or \"concatenated\", or another mesh.");
  return {.input = {ids},
          .shared = {.sequence = {.position_ids = here(batch.position_ids),
                                  .hidden_states_agg_mask = std::nullopt,
                                  .packed = batch.packed,
                                  .real_positions = std::move(real)},
                     .head = {labels}},
          .state = {labels.ne(kIgnoreIndex).sum()},
          .num_tokens = num_tokens};
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
