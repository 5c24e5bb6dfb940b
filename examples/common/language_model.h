// What the pretraining examples have in common: the types of next-token prediction, its task, its data.
#pragma once

#include <memory>
#include <optional>

#include <ATen/ATen.h>

#include "d9d/data/token_stream.h"
#include "d9d/loop/control/providers.h"
#include "d9d/loop/control/task.h"
#include "d9d/models/decoder/decoder_with_head.h"
#include "d9d/parallelism/context/parallelize_context_parallel.h"

namespace examples {

struct LanguageModelState {
  at::Tensor num_predicted;  // scalar: labels that count
  static constexpr auto fields() {
    return d9d::record<LanguageModelState>(d9d::field("num_predicted", &LanguageModelState::num_predicted));
  }
};

struct LanguageModelTypes {
  using Batch = d9d::TokenBatch;
  using Input = d9d::SequenceInput;
  using Shared = d9d::DecoderForCausalLM::Shared;
  using Output = d9d::DecoderOutput<d9d::LanguageModellingHead>;
  using State = LanguageModelState;
};

// Mean cross-entropy of a microbatch, weighted by how many labels it has, so that a step's loss is the mean over its
// tokens and each token's loss has a gradient of 1, by which no kernel has to multiply. Under context parallelism a
// rank takes its positions of each sequence.
class LanguageModelTask : public d9d::TrainTask<LanguageModelTypes> {
 public:
  explicit LanguageModelTask(const d9d::DistContext& context)
      : positions_(context.mesh(d9d::MeshDomain::kBatch).slice({"cp"})) {}

  d9d::ForwardInputs<LanguageModelTypes> build_forward_inputs(const d9d::TokenBatch& batch) override {
    const auto here = [&](const at::Tensor& x) { return d9d::context_parallel_shard(x, /*dim=*/1, positions_); };
    const at::Tensor ids = here(batch.input_ids);
    const at::Tensor labels = here(batch.labels);
    return {.input = {ids},
            .shared = {.sequence = {.position_ids = here(batch.position_ids), .hidden_states_agg_mask = std::nullopt},
                       .head = {labels}},
            .state = {labels.ne(d9d::kIgnoreIndex).sum()},
            .num_tokens = ids.numel()};
  }

  d9d::LossResult compute_loss(const Output& output, LanguageModelState& state, const d9d::JobSchedule&) override {
    at::Tensor loss = output.head.cross_entropy.sum() / state.num_predicted.clamp_min(1);
    if (output.auxiliary_loss) loss = loss + *output.auxiliary_loss;
    return {.loss = loss, .loss_weight = state.num_predicted};
  }

  d9d::MetricMap create_metrics() override { return {{"num_predicted", num_predicted_}}; }
  void update_metrics(const LanguageModelState& state, const d9d::MetricMap&) override {
    num_predicted_->update(state.num_predicted);
  }

 private:
  d9d::DeviceMesh positions_;  // the ranks that share a sequence
  std::shared_ptr<d9d::SumMetric> num_predicted_ = std::make_shared<d9d::SumMetric>();
};

// What the data must fit into.
struct TokenLimits {
  std::int64_t vocabulary_size;
  std::int64_t max_positions;
};

// Token sequences from text or from a file of tokens. With a step budget the data is repeated, shuffled anew each time.
class TokenDataProvider : public d9d::DataProvider<d9d::TokenBatch> {
 public:
  TokenDataProvider(d9d::DataConfig config, const TokenLimits& limits, std::int64_t base_seed)
      : config_(std::move(config)), limits_(limits), base_seed_(base_seed) {}

  std::unique_ptr<d9d::PackStream<d9d::TokenBatch>> build_pack_stream(
      const d9d::DistContext& context, std::optional<std::int64_t> total_steps) override {
    return d9d::build_token_stream(config_,
                                   {.vocabulary_size = limits_.vocabulary_size,
                                    .max_positions = limits_.max_positions,
                                    .stream = {.rank = {context.data_parallel_rank(), context.data_parallel_size()},
                                               .seed = static_cast<std::uint64_t>(base_seed_),
                                               .repeat = total_steps.has_value(),
                                               .log = context.log()}});
  }

 private:
  d9d::DataConfig config_;
  TokenLimits limits_;
  std::int64_t base_seed_;
};

}  // namespace examples
