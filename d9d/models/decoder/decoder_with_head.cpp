#include "d9d/models/decoder/decoder_with_head.h"

namespace d9d {

ModulePtr<LanguageModellingHead> make_language_modelling_head(DecoderBackbone& backbone,
                                                              const CausalLMHeadConfig& config) {
  if (!backbone.stage().is_last()) return nullptr;
  if (backbone.ties_word_embeddings()) {
    return make_module<LanguageModellingHead>(backbone.vocabulary(), backbone.tied_head_weights(), config);
  }
  return make_module<LanguageModellingHead>(backbone.vocabulary(), backbone.hidden_size(), config);
}

ModulePtr<DecoderForCausalLM> make_decoder_for_causal_lm(const ModulePtr<DecoderBackbone>& backbone,
                                                         const CausalLMHeadConfig& config) {
  return make_module<DecoderForCausalLM>(backbone, make_language_modelling_head(*backbone, config));
}

ModulePtr<DecoderForClassification> make_decoder_for_classification(const ModulePtr<DecoderBackbone>& backbone,
                                                                    const ClassificationHeadConfig& config) {
  return make_module<DecoderForClassification>(
      backbone,
      backbone->stage().is_last() ? make_module<ClassificationHead>(config, backbone->hidden_size()) : nullptr);
}

ModulePtr<DecoderForEmbedding> make_decoder_for_embedding(const ModulePtr<DecoderBackbone>& backbone,
                                                          const EmbeddingHeadConfig& config) {
  return make_module<DecoderForEmbedding>(
      backbone, backbone->stage().is_last() ? make_module<EmbeddingHead>(config, backbone->hidden_size()) : nullptr);
}

}  // namespace d9d
