// Qwen3, mixture of experts (arXiv:2505.09388): the dense model's attention, with experts in place of its feed-forward.
// Single layers may be those of the dense model (Qwen3MoELayerParameters::dense_layers).
//
// Example
//   auto backbone = make_module<Qwen3MoEModel>(parameters, DecoderStageOptions{});
//   auto model = make_decoder_for_causal_lm(backbone);
#pragma once

#include "d9d/blocks/attention/grouped_query_attention.h"
#include "d9d/blocks/moe/moe_layer.h"
#include "d9d/models/decoder/pre_norm_decoder.h"
#include "d9d/models/qwen3_moe/config.h"

namespace d9d {

// Children: self_attn, mlp, input_layernorm, post_attention_layernorm.
class Qwen3MoELayer : public DecoderLayer {
 public:
  explicit Qwen3MoELayer(const Qwen3MoELayerParameters& parameters);
  [[nodiscard]] DecoderLayerOutput forward(const at::Tensor& hidden_states, const LayerContext& context) const override;

  const ModulePtr<RMSNorm> input_layernorm;
  const ModulePtr<GroupedQueryAttention> self_attn;
  const ModulePtr<RMSNorm> post_attention_layernorm;
  const ModulePtr<MoELayer> mlp;

 protected:
  [[nodiscard]] std::shared_ptr<Module> feed_forward() const override { return mlp.shared(); }
};

class Qwen3MoEModel : public PreNormDecoder {
 public:
  Qwen3MoEModel(const Qwen3MoEParameters& model_parameters, const DecoderStageOptions& options);

  const Qwen3MoEParameters parameters;
};

}  // namespace d9d
