#include "d9d/models/qwen2/model.h"

namespace d9d {
namespace {

GroupedQueryAttentionConfig qwen2_attention_config(const DenseLayerParameters& layer) {
  GroupedQueryAttentionConfig config = attention_config(layer);
  config.has_qkv_bias = true;
  return config;
}

}  // namespace

Qwen2Layer::Qwen2Layer(const DenseLayerParameters& parameters)
    : input_layernorm(
          register_module<RMSNorm>("input_layernorm", RMSNormConfig{parameters.hidden_size, parameters.rms_norm_eps})),
      self_attn(register_module<GroupedQueryAttention>("self_attn", qwen2_attention_config(parameters))),
      post_attention_layernorm(register_module<RMSNorm>(
          "post_attention_layernorm", RMSNormConfig{parameters.hidden_size, parameters.rms_norm_eps})),
      mlp(register_module<SwiGLU>("mlp", SwiGLUConfig{parameters.hidden_size, parameters.intermediate_size})) {}

DecoderLayerOutput Qwen2Layer::forward(const at::Tensor& hidden_states, const LayerContext& context) const {
  const auto [residual, normed_input] = input_layernorm(hidden_states, std::optional<at::Tensor>());
  const at::Tensor attention =
      self_attn(normed_input, context.tables, std::optional<at::Tensor>(), context.shared.packed);
  const auto [attended, normed] = post_attention_layernorm(residual, attention);
  return {.hidden_states = attended + mlp(normed), .auxiliary_loss = std::nullopt};
}

Qwen2Model::Qwen2Model(const Qwen2Parameters& model_parameters, const DecoderStageOptions& stage_options)
    : PreNormDecoder(pre_norm_decoder_config(model_parameters), stage_options,
                     [&](std::int64_t) { return make_module<Qwen2Layer>(model_parameters.layer); }),
      parameters(model_parameters) {}

}  // namespace d9d
