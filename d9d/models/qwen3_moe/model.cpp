#include "d9d/models/qwen3_moe/model.h"

#include <algorithm>

#include "d9d/models/qwen3_dense/model.h"

namespace d9d {

Qwen3MoELayer::Qwen3MoELayer(const Qwen3MoELayerParameters& parameters)
    : input_layernorm(
          register_module<RMSNorm>("input_layernorm", RMSNormConfig{parameters.hidden_size, parameters.rms_norm_eps})),
      self_attn(register_module<GroupedQueryAttention>("self_attn", qk_norm_attention_config(parameters))),
      post_attention_layernorm(register_module<RMSNorm>(
          "post_attention_layernorm", RMSNormConfig{parameters.hidden_size, parameters.rms_norm_eps})),
      mlp(register_module<MoELayer>(
          "mlp", MoELayerConfig{.hidden_size = parameters.hidden_size,
                                .intermediate_size = parameters.intermediate_size,
                                .num_experts = parameters.num_experts,
                                .top_k = parameters.experts_top_k,
                                .renormalize_probabilities = parameters.router_renormalize_probabilities,
                                .shared_expert = std::nullopt,
                                .grouped_mm_backend = parameters.grouped_mm_backend,
                                .auxiliary_loss_coefficient = parameters.router_auxiliary_loss_coefficient,
                                .expert_bias_update_rate = parameters.router_bias_update_rate})) {}

DecoderLayerOutput Qwen3MoELayer::forward(const at::Tensor& hidden_states, const LayerContext& context) const {
  const auto [residual, normed_input] = input_layernorm(hidden_states, std::optional<at::Tensor>());
  const at::Tensor attention =
      self_attn(normed_input, context.tables, std::optional<at::Tensor>(), context.shared.packed);
  const auto [attended, normed] = post_attention_layernorm(residual, attention);
  const MoEOutput mixed = mlp(normed, context.shared.real_positions);
  return {.hidden_states = attended + mixed.hidden_states, .auxiliary_loss = mixed.auxiliary_loss};
}

namespace {

PreNormDecoderConfig decoder_config_of(const Qwen3MoEParameters& parameters) {
  PreNormDecoderConfig config = pre_norm_decoder_config(parameters);
  const bool has_experts = std::ranges::any_of(qwen3_moe_layers(parameters), [](const Qwen3MoELayerRecord& layer) {
    return std::holds_alternative<Qwen3MoELayerParameters>(layer);
  });
  config.has_auxiliary_loss = has_experts && parameters.layer.router_auxiliary_loss_coefficient > 0.0;
  return config;
}

ModulePtr<DecoderLayer> make_layer(const DenseLayerParameters& layer) { return make_module<Qwen3DenseLayer>(layer); }
ModulePtr<DecoderLayer> make_layer(const Qwen3MoELayerParameters& layer) { return make_module<Qwen3MoELayer>(layer); }

}  // namespace

Qwen3MoEModel::Qwen3MoEModel(const Qwen3MoEParameters& model_parameters, const DecoderStageOptions& stage_options)
    : PreNormDecoder(decoder_config_of(model_parameters), stage_options,
                     [layers = qwen3_moe_layers(model_parameters)](std::int64_t index) {
                       return std::visit([](const auto& layer) { return make_layer(layer); },
                                         layers.at(static_cast<std::size_t>(index)));
                     }),
      parameters(model_parameters) {}

}  // namespace d9d
