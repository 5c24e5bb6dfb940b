// Qwen2 and Qwen2.5 (arXiv:2412.15115): grouped-query attention with biases of queries, keys and values, and a gated
// feed-forward, each preceded by a norm. Qwen3 normalises queries and keys instead.
//
// Example
//   auto backbone = make_module<Qwen2Model>(parameters, DecoderStageOptions{});
//   auto model = make_decoder_for_causal_lm(backbone);
#pragma once

#include "d9d/blocks/attention/grouped_query_attention.h"
#include "d9d/blocks/ffn/swiglu.h"
#include "d9d/models/decoder/dense_parameters.h"
#include "d9d/models/decoder/pre_norm_decoder.h"
#include "d9d/models/model_family.h"

namespace d9d {

using Qwen2Parameters = DenseParameters;

// Children: self_attn, mlp, input_layernorm, post_attention_layernorm.
class Qwen2Layer : public DecoderLayer {
 public:
  explicit Qwen2Layer(const DenseLayerParameters& parameters);
  [[nodiscard]] DecoderLayerOutput forward(const at::Tensor& hidden_states, const LayerContext& context) const override;

  const ModulePtr<RMSNorm> input_layernorm;
  const ModulePtr<GroupedQueryAttention> self_attn;
  const ModulePtr<RMSNorm> post_attention_layernorm;
  const ModulePtr<SwiGLU> mlp;

 protected:
  [[nodiscard]] std::shared_ptr<Module> feed_forward() const override { return mlp.shared(); }
};

class Qwen2Model : public PreNormDecoder {
 public:
  Qwen2Model(const Qwen2Parameters& model_parameters, const DecoderStageOptions& options);

  const Qwen2Parameters parameters;
};

// model_type "qwen2": Qwen2, Qwen2.5, and models distilled into them.
extern const ModelFamily<Qwen2Parameters> kQwen2;

}  // namespace d9d
