#include "d9d/models/decoder/pre_norm_decoder.h"

#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>

#include "d9d/base/check.h"

namespace d9d {
namespace {

// Hidden states between layers have the dtype of the matrices that they are multiplied with; the largest parameter of a
// layer is taken for all of them. Norms and routers may have another dtype.
at::ScalarType dtype_between_layers(const DecoderLayer& layer) {
  const auto parameters = layer.named_parameters();
  const auto size = [](const auto& named) { return c10::multiply_integers(named.second->global_shape()); };
  return std::ranges::max_element(parameters, {}, size)->second->local().scalar_type();
}

// The dtype of the auxiliary loss: float64 for a decoder in float64, otherwise float32.
at::ScalarType auxiliary_dtype(at::ScalarType dtype) { return at::promote_types(dtype, at::kFloat); }

// Those of the indices of [B, S] positions that are of this rank's shard, as indices of its [B, S / W] positions. On
// the meta device, where they are unknown: as many as it can have.
at::Tensor of_shard(const at::Tensor& indices, at::IntArrayRef sizes, const DeviceMesh& ranks) {
  const std::int64_t length = sizes[1] / ranks.num_ranks();
  if (indices.is_meta()) return indices.slice(0, 0, sizes[0] * length);
  const at::Tensor is_one = at::zeros({sizes[0] * sizes[1]}, indices.options().dtype(at::kBool));
  is_one.index_fill_(0, indices, true);
  return is_one.view(sizes).narrow(1, ranks.index() * length, length).reshape({-1}).nonzero().squeeze(1);
}

}  // namespace

PreNormDecoder::PreNormDecoder(PreNormDecoderConfig configuration, const DecoderStageOptions& stage_options,
                               const MakeLayer& make_layer)
    : config(std::move(configuration)),
      options(stage_options),
      layer_range(layers_of_stage(config.layers, options.stage)),
      embed_tokens(options.stage.is_first() ? make_embedding() : nullptr),
      rope_provider(register_module<RotaryEmbeddingProvider>("rope_provider", config.rope)),
      norm(options.stage.is_last()
               ? register_module<RMSNorm>("norm", RMSNormConfig{config.hidden_size, config.rms_norm_eps})
               : nullptr),
      layers_(register_module<ModuleList<DecoderLayer>>("layers", layer_range.begin)) {
  for (std::int64_t i = layer_range.begin; i < layer_range.end; ++i) {
    const ModulePtr<DecoderLayer> layer = make_layer(i);
    layer->set_activation_plan(options.checkpointing.of_layer(i));
    layers_->append(layer);
  }
}

ModulePtr<SplitTokenEmbeddings> PreNormDecoder::make_embedding() {
  using enum EmbeddingUse;
  const EmbeddingUse of_tied = options.stage.is_first() ? kLookupAndHead : kHead;
  auto embedding = register_module<SplitTokenEmbeddings>("embed_tokens", config.vocabulary, config.hidden_size,
                                                         config.ties_word_embeddings ? of_tied : kLookup);
  if (config.ties_word_embeddings) {  // as a head on normalised hidden states: logits of order one
    const double std = 1.0 / std::sqrt(static_cast<double>(config.hidden_size));
    for (const ParameterPtr& weight : embedding->weights) weight->set_init(init::normal(std));
  }
  return embedding;
}

std::vector<ParameterPtr> PreNormDecoder::tied_head_weights() {
  D9D_ASSERT(config.ties_word_embeddings && options.stage.is_last(), "a tied head of the last stage");
  if (!embed_tokens) embed_tokens = make_embedding();
  return embed_tokens->weights;
}

LayerContext PreNormDecoder::layer_context(const SequenceShared& shared) const {
  LayerContext context{.tables = rope_provider(shared.position_ids), .shared = shared};
  if (shared.real_positions && position_ranks_.of_shards.num_ranks() > 1) {
    context.shared.real_positions =
        of_shard(*shared.real_positions, shared.position_ids.sizes(), position_ranks_.of_shards);
  }
  return context;
}

SequenceTransfer PreNormDecoder::forward(const SequenceStageInput& input, const SequenceShared& shared) const {
  D9D_CHECK(
      std::holds_alternative<SequenceInput>(input) == options.stage.is_first(), ConfigError,
      "[models::decoder] expected token ids on the first stage and a transfer on the others, got the other on stage ",
      options.stage.current_stage, " of ", options.stage.num_stages, ".");
  HiddenStatesAggregator aggregator(options.snapshot_mode, shared.hidden_states_agg_mask, position_ranks_);
  SequenceTransfer state;
  if (const auto* ids = std::get_if<SequenceInput>(&input)) {
    state.hidden_states = embed_tokens(ids->input_ids);
    aggregator.add(state.hidden_states);
  } else {
    state = std::get<SequenceTransfer>(input);
  }
  const LayerContext context = layer_context(shared);
  for (const ModulePtr<DecoderLayer>& layer : *layers_) {
    const DecoderLayerOutput output = layer(state.hidden_states, context);
    state.hidden_states = output.hidden_states;
    if (output.auxiliary_loss) {
      state.auxiliary_loss =
          state.auxiliary_loss ? *state.auxiliary_loss + *output.auxiliary_loss : *output.auxiliary_loss;
    }
    aggregator.add(state.hidden_states);
  }
  if (config.has_auxiliary_loss && !state.auxiliary_loss) {  // no layer so far has returned one, but later ones will
    const at::TensorOptions like = state.hidden_states.options();
    state.auxiliary_loss = at::zeros({}, like.dtype(auxiliary_dtype(state.hidden_states.scalar_type())));
  }
  if (norm) state.hidden_states = norm(state.hidden_states);
  state.hidden_states_snapshot = aggregator.pack_with_snapshot(state.hidden_states_snapshot);
  return state;
}

SequenceTransfer PreNormDecoder::stage_transfer(const SequenceInput& pipeline_input, StageBoundary boundary) const {
  const std::int64_t batch = pipeline_input.input_ids.size(0);
  const std::int64_t sequence = pipeline_input.input_ids.size(1);
  const std::int64_t num_shards = position_ranks_.of_shards.num_ranks();
  D9D_CHECK(sequence % num_shards == 0, ConfigError,
            "[models::decoder] expected positions in a multiple of the tensor-parallel ranks = ", num_shards,
            ", got ids ", pipeline_input.input_ids.sizes(),
            ". Pad sequences by collate_padded_to_multiple() or collate_fixed_to_multiple().");
  const at::ScalarType dtype = dtype_between_layers(*(*layers_)[0]);
  const at::TensorOptions meta(at::kMeta);
  SequenceTransfer transfer{
      .hidden_states = at::empty({batch, sequence / num_shards, config.hidden_size}, meta.dtype(dtype)),
      .hidden_states_snapshot = std::nullopt,
      .auxiliary_loss = std::nullopt};
  const std::int64_t layers_done = boundary == StageBoundary::kIncoming ? layer_range.begin : layer_range.end;
  if (options.snapshot_mode != HiddenStatesAggregationMode::kNo) {
    transfer.hidden_states_snapshot = at::empty({layers_done + 1, batch, config.hidden_size}, meta.dtype(dtype));
  }
  if (config.has_auxiliary_loss) {
    transfer.auxiliary_loss = at::empty({}, meta.dtype(auxiliary_dtype(dtype)));
  }
  return transfer;
}

std::vector<ParameterPtr> PreNormDecoder::embedding_weights() const {
  return embed_tokens ? embed_tokens->weights : std::vector<ParameterPtr>{};
}

}  // namespace d9d
