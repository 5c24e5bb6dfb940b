// Llama 3 (arXiv:2407.21783): grouped-query attention and a gated feed-forward, each preceded by a norm. Unlike Qwen3,
// it does not normalise queries and keys. Since 3.1 rotary frequencies are scaled (Llama3RopeScalingConfig).
//
// Example
//   auto backbone = make_module<Llama3Model>(parameters, DecoderStageOptions{});
//   auto model = make_decoder_for_causal_lm(backbone);
#pragma once

#include "d9d/blocks/attention/grouped_query_attention.h"
#include "d9d/blocks/ffn/swiglu.h"
#include "d9d/models/decoder/dense_parameters.h"
#include "d9d/models/decoder/pre_norm_decoder.h"
#include "d9d/models/model_family.h"

namespace d9d {

using Llama3Parameters = DenseParameters;

// Children: self_attn, mlp, input_layernorm, post_attention_layernorm.
class Llama3Layer : public DecoderLayer {
 public:
  explicit Llama3Layer(const DenseLayerParameters& parameters);
  [[nodiscard]] DecoderLayerOutput forward(const at::Tensor& hidden_states, const LayerContext& context) const override;

  const ModulePtr<RMSNorm> input_layernorm;
  const ModulePtr<GroupedQueryAttention> self_attn;
  const ModulePtr<RMSNorm> post_attention_layernorm;
  const ModulePtr<SwiGLU> mlp;

 protected:
  [[nodiscard]] std::shared_ptr<Module> feed_forward() const override { return mlp.shared(); }
};

class Llama3Model : public PreNormDecoder {
 public:
  Llama3Model(const Llama3Parameters& model_parameters, const DecoderStageOptions& options);

  const Llama3Parameters parameters;
};

// model_type "llama". Refuses attention_bias and mlp_bias, which no published Llama 3 has.
extern const ModelFamily<Llama3Parameters> kLlama3;

}  // namespace d9d
