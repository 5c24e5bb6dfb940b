// Qwen3, dense (Qwen3 technical report, arXiv:2505.09388): grouped-query attention with normalised queries and keys,
// and a gated feed-forward, each preceded by a norm.
//
// Example
//   auto backbone = make_module<Qwen3DenseModel>(parameters, DecoderStageOptions{});
//   auto model = make_decoder_for_causal_lm(backbone);
#pragma once

#include "d9d/blocks/attention/grouped_query_attention.h"
#include "d9d/blocks/ffn/swiglu.h"
#include "d9d/models/decoder/pre_norm_decoder.h"
#include "d9d/models/qwen3_dense/config.h"

namespace d9d {

// Children: self_attn, mlp, input_layernorm, post_attention_layernorm.
class Qwen3DenseLayer : public DecoderLayer {
 public:
  explicit Qwen3DenseLayer(const Qwen3DenseLayerParameters& parameters);
  [[nodiscard]] DecoderLayerOutput forward(const at::Tensor& hidden_states, const LayerContext& context) const override;

  const ModulePtr<RMSNorm> input_layernorm;
  const ModulePtr<GroupedQueryAttention> self_attn;
  const ModulePtr<RMSNorm> post_attention_layernorm;
  const ModulePtr<SwiGLU> mlp;

 protected:
  [[nodiscard]] std::shared_ptr<Module> feed_forward() const override { return mlp.shared(); }
};

class Qwen3DenseModel : public PreNormDecoder {
 public:
  Qwen3DenseModel(const Qwen3DenseParameters& model_parameters, const DecoderStageOptions& options);

  const Qwen3DenseParameters parameters;
};

}  // namespace d9d
