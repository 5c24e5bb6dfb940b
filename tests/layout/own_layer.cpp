#include "tests/layout/own_layer.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "d9d/core/autograd/checkpoint.h"
#include "d9d/models/qwen3_dense/model.h"

namespace d9d::test {
namespace {

GroupedQueryAttentionConfig attention_of(const OwnLayers& own, const SmallDecoder& sizes) {
  auto config = qk_norm_attention_config(small_parameters<Qwen3DenseParameters>(sizes).layer);
  if (own.attention == Attention::kGated) {
    config.has_output_gate = true;
    config.has_qkv_bias = true;
    config.has_output_bias = true;
    config.softcap = 5.0;
  }
  if (own.attention == Attention::kWindow) {
    config.window_left = 2;
    config.has_sinks = true;
  }
  return config;
}

MoELayerConfig experts_of(const OwnLayers& own, const SmallDecoder& sizes) {
  MoELayerConfig config{.hidden_size = sizes.hidden_size,
                        .intermediate_size = sizes.intermediate_size,
                        .num_experts = sizes.num_experts,
                        .top_k = sizes.experts_top_k,
                        .shared_expert = std::nullopt,
                        .grouped_mm_backend = std::nullopt,
                        .auxiliary_loss_coefficient = sizes.auxiliary_loss_coefficient,
                        .expert_bias_update_rate = sizes.bias_update_rate};
  if (own.has_shared_expert) config.shared_expert = {.intermediate_size = 7, .enable_gate = true};
  return config;
}

}  // namespace

OwnLayer::OwnLayer(const OwnLayers& layers, const SmallDecoder& sizes)
    : own(layers),
      input_layernorm(register_module<RMSNorm>("input_layernorm", RMSNormConfig{sizes.hidden_size})),
      self_attn(register_module<GroupedQueryAttention>("self_attn", attention_of(own, sizes))),
      post_attention_layernorm(register_module<RMSNorm>("post_attention_layernorm", RMSNormConfig{sizes.hidden_size})),
      mlp(own.has_experts
              ? nullptr
              : register_module<SwiGLU>("mlp", SwiGLUConfig{.hidden_size = sizes.hidden_size,
                                                            .intermediate_size = sizes.intermediate_size,
                                                            .has_bias = own.attention == Attention::kGated})),
      experts(own.has_experts ? register_module<MoELayer>("experts", experts_of(own, sizes)) : nullptr),
      dropout(register_module<Dropout>("dropout", own.dropout)),
      branch(own.has_branch ? register_module<Linear>("branch", LinearConfig{.in_features = sizes.hidden_size,
                                                                             .out_features = sizes.hidden_size,
                                                                             .has_bias = true})
                            : nullptr),
      scale(register_parameter("scale", {.shape = {sizes.hidden_size}, .init = init::uniform(1.0)})),
      seen(own.has_buffer ? register_buffer("seen", {.shape = {sizes.hidden_size},
                                                     .dtype = at::kDouble,
                                                     .init = init::zeros(),
                                                     .follows_dtype = false})
                          : nullptr),
      seen_in_step_(at::zeros({sizes.hidden_size}, at::kDouble)) {}

DecoderLayerOutput OwnLayer::forward(const at::Tensor& hidden_states, const LayerContext& context) const {
  const SequenceShared& shared = context.shared;
  if (seen && !is_recomputing()) {
    const at::NoGradGuard no_grad;
    at::Tensor rows = hidden_states.detach().flatten(0, -2).to(at::kDouble);
    if (shared.real_positions) rows = rows.index_select(0, *shared.real_positions);
    seen_in_step_ = seen_in_step_ + rows.sum(0);
  }
  const at::Tensor attended = hidden_states + self_attn(input_layernorm(hidden_states), context.tables,
                                                        std::optional<at::Tensor>(), shared.packed);
  const at::Tensor normed = post_attention_layernorm(attended);
  DecoderLayerOutput output;
  at::Tensor mixed;
  if (experts) {
    const MoEOutput of_experts = experts(normed, shared.real_positions);
    mixed = of_experts.hidden_states;
    output.auxiliary_loss = of_experts.auxiliary_loss;
  } else {
    mixed = mlp(normed);
  }
  mixed = dropout(mixed);
  if (branch && replayed([this] { return uses_branch_; })) mixed = mixed + branch(normed);
  if (own.replays) mixed = mixed * replayed([this] { return 1.0 + 0.25 * (num_calls_++ % 5); });
  output.hidden_states = attended + mixed * scale->local();
  return output;
}

// Beside those of its blocks.
std::optional<TensorPlan> OwnLayer::tensor_plan(std::int64_t /*num_ranks*/) const {
  TensorPlan plan{.parameters = {{scale, Replicate{}}}};
  if (!branch) return plan;
  for (const auto& [name, parameter] : branch->named_parameters()) plan.parameters.push_back({parameter, Replicate{}});
  return plan;
}

void OwnLayer::on_step_finished(StepOutcome outcome) {
  if (!seen) return;
  const at::NoGradGuard no_grad;
  if (ranks_.num_ranks() > 1) ranks_.communicator()->all_reduce(seen_in_step_, ReduceOp::kSum).wait();
  if (outcome == StepOutcome::kUpdated) seen->local.mul_(0.5).add_(seen_in_step_);
  seen_in_step_ = at::zeros_like(seen_in_step_);
}

ModulePtr<PreNormDecoder> make_own_decoder(const OwnLayers& own, const SmallDecoder& sizes,
                                           const DecoderStageOptions& options) {
  PreNormDecoderConfig config = pre_norm_decoder_config(small_parameters<Qwen3DenseParameters>(sizes));
  config.has_auxiliary_loss = own.has_experts && sizes.auxiliary_loss_coefficient > 0.0;
  return make_module<PreNormDecoder>(config, options, [&](std::int64_t index) {
    OwnLayers of_layer = own;
    of_layer.has_experts = own.has_experts && index >= sizes.num_dense_layers;
    return make_module<OwnLayer>(of_layer, sizes);
  });
}

}  // namespace d9d::test
