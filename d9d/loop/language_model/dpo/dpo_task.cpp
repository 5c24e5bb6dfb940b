#include "d9d/loop/language_model/dpo/dpo_task.h"

#include <memory>
#include <utility>

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/base/config/record_json.h"
#include "d9d/loop/language_model/sequence_log_probs.h"
#include "d9d/metrics/aggregates.h"
#include "d9d/parallelism/context/parallelize_context_parallel.h"

namespace d9d {

DpoTask::DpoTask(const DistContext& context, DpoConfig config, LanguageModelTaskOptions options)
    : positions_(context_parallel_cut(context.mesh(MeshDomain::kBatch).slice({"cp"}))),
      config_(config),
      options_(options) {}

ForwardInputs<DpoTypes> DpoTask::build_forward_inputs(const TokenBatch& batch) {
  D9D_CHECK(!batch.packed && batch.input_ids.size(0) % 2 == 0, ConfigError,
            "[loop::DpoTask] expected sequences in pairs, each in a row of its own, got ", batch.input_ids.size(0),
            batch.packed ? " packed rows" : " rows", ". Give it the data of pair_data_provider().");
  DecoderInputs inputs = decoder_inputs(batch, positions_, options_);
  // The labels of whole sequences: a rank that shares one may have none of them.
  const at::Tensor is_pair = batch.labels.ne(kIgnoreIndex).any(/*dim=*/1).view({-1, 2}).all(/*dim=*/1);
  return {.input = std::move(inputs.input),
          .shared = std::move(inputs.shared),
          .state = {.is_pair = is_pair, .num_pairs = is_pair.sum(), .reference = {}, .model = {}},
          .num_tokens = inputs.num_tokens};
}

at::Tensor DpoTask::log_probs_of_pairs(const Output& output) const {
  return sequence_log_probs(output.head.cross_entropy, positions_.ranks()).view({-1, 2});
}

void DpoTask::take_reference(const Output& output, DpoState& state) { state.reference = log_probs_of_pairs(output); }

LossResult DpoTask::compute_loss(const Output& output, DpoState& state, const JobSchedule&) {
  D9D_CHECK(state.reference.defined(), StateError, "[loop::DpoTask] expected take_reference() before compute_loss(), ",
            "got none. A loop of your own runs the reference first (d9d/loop/step/reference_pass.h).");
  state.model = log_probs_of_pairs(output);
  const at::Tensor ratios = state.model - state.reference;
  const at::Tensor margins = ratios.select(1, 0) - ratios.select(1, 1);
  const at::Tensor losses = -at::log_sigmoid(margins * config_.beta);
  at::Tensor loss = losses.masked_fill(state.is_pair.logical_not(), 0).sum() / state.num_pairs.clamp_min(1);
  if (output.auxiliary_loss) loss = loss + *output.auxiliary_loss;
  return {.loss = loss, .loss_weight = state.num_pairs};
}

MetricMap DpoTask::create_metrics() {
  MetricMap metrics;
  for (const char* const name : {"rewards/chosen", "rewards/rejected", "rewards/margins", "rewards/accuracies",
                                 "logps/chosen", "logps/rejected"}) {
    metrics.emplace(name, counted_by_sample(std::make_shared<MeanMetric>()));
  }
  return metrics;
}

void DpoTask::update_metrics(const DpoState& state, const MetricMap& metrics) {
  const auto add = [&](const char* name, const at::Tensor& of_pairs) {
    metric_at<MeanMetric>(metrics, name).update(of_pairs, state.is_pair);
  };
  const at::Tensor rewards = (state.model - state.reference) * config_.beta;
  const at::Tensor chosen = rewards.select(1, 0), rejected = rewards.select(1, 1);
  add("rewards/chosen", chosen);
  add("rewards/rejected", rejected);
  add("rewards/margins", chosen - rejected);
  add("rewards/accuracies", chosen > rejected);
  add("logps/chosen", state.model.select(1, 0));
  add("logps/rejected", state.model.select(1, 1));
}

nlohmann::json DpoTask::dump_hparams() const { return {{"dpo", write_record(config_)}}; }

}  // namespace d9d
