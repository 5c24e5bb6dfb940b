#include "d9d/modules/models/qwen3_dense/model.h"

namespace d9d {

Qwen3DenseLayer::Qwen3DenseLayer(const Qwen3DenseLayerParameters& parameters)
    : input_layernorm(
          register_module<RMSNorm>("input_layernorm", RMSNormConfig{parameters.hidden_size, parameters.rms_norm_eps})),
      self_attn(register_module<GroupedQueryAttention>(
          "self_attn", GroupedQueryAttentionConfig{.hidden_size = parameters.hidden_size,
                                                   .num_attention_heads = parameters.num_attention_heads,
                                                   .num_key_value_heads = parameters.num_key_value_heads,
                                                   .head_dim = parameters.head_dim,
                                                   .qk_norm_eps = parameters.rms_norm_eps,
                                                   .sdpa_backend = parameters.sdpa_backend})),
      post_attention_layernorm(register_module<RMSNorm>(
          "post_attention_layernorm", RMSNormConfig{parameters.hidden_size, parameters.rms_norm_eps})),
      mlp(register_module<SwiGLU>("mlp", SwiGLUConfig{parameters.hidden_size, parameters.intermediate_size})) {}

DecoderLayerOutput Qwen3DenseLayer::forward(const at::Tensor& hidden_states, const RotaryTables& tables) const {
  const at::Tensor attended = hidden_states + self_attn(input_layernorm(hidden_states), tables);
  return {.hidden_states = attended + mlp(post_attention_layernorm(attended)), .auxiliary_loss = std::nullopt};
}

Qwen3DenseModel::Qwen3DenseModel(const Qwen3DenseParameters& model_parameters, const DecoderStageOptions& stage_options)
    : PreNormDecoder(
          {.hidden_size = model_parameters.layer.hidden_size,
           .layers = {.num_layers = model_parameters.num_hidden_layers,
                      .num_virtual_layers_pre = model_parameters.pipeline_num_virtual_layers_pre,
                      .num_virtual_layers_post = model_parameters.pipeline_num_virtual_layers_post},
           .rms_norm_eps = model_parameters.layer.rms_norm_eps,
           .vocabulary = {.sizes = model_parameters.split_vocab_size, .order = model_parameters.split_vocab_order},
           .rope = {.base = model_parameters.rope_base,
                    .head_dim = model_parameters.layer.head_dim,
                    .max_position_ids = model_parameters.max_position_ids,
                    .scaling = model_parameters.rope_scaling},
           .ties_word_embeddings = model_parameters.tie_word_embeddings},
          stage_options, [&](std::int64_t) { return make_module<Qwen3DenseLayer>(model_parameters.layer); }),
      parameters(model_parameters) {}

}  // namespace d9d
