// The decoder that Qwen3 and related models share: embedding, residual layers with norms before them, a final norm. A
// model family provides its layer class; a pipeline stage builds only its own part.
#pragma once

#include <functional>
#include <memory>

#include "d9d/blocks/attention/grouped_query_attention.h"
#include "d9d/blocks/embedding/split_token_embeddings.h"
#include "d9d/blocks/hidden_states_aggregator/hidden_states_aggregator.h"
#include "d9d/blocks/normalization/rms_norm.h"
#include "d9d/core/collectives/position_ranks.h"
#include "d9d/models/decoder/decoder_backbone.h"
#include "d9d/models/decoder/decoder_layer.h"
#include "d9d/models/decoder/layer_checkpointing.h"
#include "d9d/modules/module_list.h"

namespace d9d {

// How a stage of any model family is built.
struct DecoderStageOptions {
  PipelineStageInfo stage;
  HiddenStatesAggregationMode snapshot_mode = HiddenStatesAggregationMode::kNo;
  LayerCheckpointing checkpointing;  // of activations
};

struct PreNormDecoderConfig {
  std::int64_t hidden_size = 0;
  LayerDistribution layers;
  double rms_norm_eps = 1e-6;
  VocabularySplits vocabulary;
  RotaryEmbeddingConfig rope;
  bool ties_word_embeddings = false;
  bool has_auxiliary_loss = false;  // at least one layer of the whole model returns one
};

// The decoder configuration in a parameter record of any family.
template <class Parameters>
[[nodiscard]] PreNormDecoderConfig pre_norm_decoder_config(const Parameters& parameters) {
  return {.hidden_size = parameters.layer.hidden_size,
          .layers = {.num_layers = parameters.num_hidden_layers,
                     .num_virtual_layers_pre = parameters.pipeline_num_virtual_layers_pre,
                     .num_virtual_layers_post = parameters.pipeline_num_virtual_layers_post},
          .rms_norm_eps = parameters.layer.rms_norm_eps,
          .vocabulary = {.sizes = parameters.split_vocab_size, .order = parameters.split_vocab_order},
          .rope = {.base = parameters.rope_base,
                   .head_dim = parameters.layer.head_dim,
                   .max_position_ids = parameters.max_position_ids,
                   .scaling = parameters.rope_scaling},
          .ties_word_embeddings = parameters.tie_word_embeddings};
}

// The sizes of causal attention in a layer record of any family.
template <class LayerParameters>
[[nodiscard]] GroupedQueryAttentionConfig attention_config(const LayerParameters& layer) {
  return {.hidden_size = layer.hidden_size,
          .num_attention_heads = layer.num_attention_heads,
          .num_key_value_heads = layer.num_key_value_heads,
          .head_dim = layer.head_dim,
          .qk_norm_eps = std::nullopt,
          .sdpa_backend = layer.sdpa_backend};
}

// The same with normalised queries and keys.
template <class LayerParameters>
[[nodiscard]] GroupedQueryAttentionConfig qk_norm_attention_config(const LayerParameters& layer) {
  GroupedQueryAttentionConfig config = attention_config(layer);
  config.qk_norm_eps = layer.rms_norm_eps;
  return config;
}

// Children: embed_tokens (first stage, and a last one whose head is tied to it), layers.<global index>, rope_provider,
// norm (last stage).
class PreNormDecoder : public DecoderBackbone {
 public:
  using MakeLayer = std::function<ModulePtr<DecoderLayer>(std::int64_t global_index)>;
  PreNormDecoder(PreNormDecoderConfig config, const DecoderStageOptions& options, const MakeLayer& make_layer);

  [[nodiscard]] SequenceTransfer forward(const SequenceStageInput& input, const SequenceShared& shared) const override;
  [[nodiscard]] SequenceTransfer stage_transfer(const SequenceInput& pipeline_input,
                                                StageBoundary boundary) const override;
  [[nodiscard]] std::int64_t hidden_size() const override { return config.hidden_size; }
  [[nodiscard]] const VocabularySplits& vocabulary() const override { return config.vocabulary; }
  [[nodiscard]] const PipelineStageInfo& stage() const override { return options.stage; }
  [[nodiscard]] std::optional<LayerDistribution> layer_distribution() const override { return config.layers; }
  [[nodiscard]] std::vector<ParameterPtr> embedding_weights() const override;
  [[nodiscard]] std::vector<ParameterPtr> tied_head_weights() override;
  [[nodiscard]] bool ties_word_embeddings() const override { return config.ties_word_embeddings; }

  // For example to plan the activations of single layers: layers()[i]->set_activation_plan(...).
  [[nodiscard]] const std::vector<ModulePtr<DecoderLayer>>& layers() const { return layers_->modules(); }

  // What each layer of this stage gets. Under tensor parallelism with real positions the host waits for a GPU to count
  // those of this rank's shard.
  [[nodiscard]] LayerContext layer_context(const SequenceShared& shared) const;

  // Tensor parallelism: the ranks, of one axis, over which positions of hidden states between layers are sharded, [B, S
  // / W, H]. Stages send shards: each rank sends its shard to the rank of the next stage with the same positions.
  void set_position_shards(const DeviceMesh& ranks) { position_ranks_.of_shards = ranks; }
  // Context parallelism: which positions each of its ranks, of one axis, has. Snapshots are of all of them.
  void set_context_ranks(const PositionCut& ranks) { position_ranks_.of_context = ranks; }

  const PreNormDecoderConfig config;
  const DecoderStageOptions options;
  const LayerRange layer_range;
  ModulePtr<SplitTokenEmbeddings> embed_tokens;  // null on stages without an embedding
  const ModulePtr<RotaryEmbeddingProvider> rope_provider;
  const ModulePtr<RMSNorm> norm;  // null on all stages but the last

 private:
  [[nodiscard]] ModulePtr<SplitTokenEmbeddings> make_embedding();

  const ModulePtr<ModuleList<DecoderLayer>> layers_;  // children's names are global indices
  PositionRanks position_ranks_;
};

}  // namespace d9d
