// A decoder backbone with one head, as a pipeline stage: only the last stage has the head.
//
// Example
//   auto backbone = make_module<Qwen3DenseModel>(parameters, DecoderStageOptions{});
//   auto model = make_decoder_for_causal_lm(backbone);
//   auto output = model(SequenceInput{ids}, {{position_ids}, {labels}});
//   std::get<DecoderOutput<LanguageModellingHead>>(output).head.cross_entropy     // [B, S]
#pragma once

#include <optional>
#include <variant>

#include "d9d/blocks/head/classification_head.h"
#include "d9d/blocks/head/embedding_head.h"
#include "d9d/blocks/head/language_modelling_head.h"
#include "d9d/models/decoder/decoder_backbone.h"

namespace d9d {

template <class Head>
struct DecoderOutput {
  typename Head::Output head;
  std::optional<at::Tensor> hidden_states_snapshot;  // [n, B, H]
  std::optional<at::Tensor> auxiliary_loss;          // scalar; to be added to the loss
  static constexpr auto fields() {
    return record<DecoderOutput>(field("head", &DecoderOutput::head),
                                 field("hidden_states_snapshot", &DecoderOutput::hidden_states_snapshot),
                                 field("auxiliary_loss", &DecoderOutput::auxiliary_loss));
  }
};

// Children: model, and on the last stage head.
template <class Head>
class DecoderWithHead : public Module {
 public:
  using Shared = SequenceHeadShared<typename Head::Shared>;
  using Output = std::variant<SequenceTransfer, DecoderOutput<Head>>;  // the last stage returns the second

  // head: null on all stages but the last.
  DecoderWithHead(const ModulePtr<DecoderBackbone>& backbone, const ModulePtr<Head>& task_head)
      : model(register_module("model", backbone)), head(task_head ? register_module("head", task_head) : task_head) {}

  [[nodiscard]] Output forward(const SequenceStageInput& input, const Shared& shared) const {
    SequenceTransfer state = model(input, shared.sequence);
    if (!head) return state;
    return DecoderOutput<Head>{.head = head(state.hidden_states, shared.head),
                               .hidden_states_snapshot = state.hidden_states_snapshot,
                               .auxiliary_loss = state.auxiliary_loss};
  }

  [[nodiscard]] SequenceTransfer stage_transfer(const SequenceInput& pipeline_input, StageBoundary boundary) const {
    return model->stage_transfer(pipeline_input, boundary);
  }

  [[nodiscard]] std::optional<LayerDistribution> layer_distribution() const { return model->layer_distribution(); }

  const ModulePtr<DecoderBackbone> model;
  const ModulePtr<Head> head;
};

using DecoderForCausalLM = DecoderWithHead<LanguageModellingHead>;
using DecoderForClassification = DecoderWithHead<ClassificationHead>;
using DecoderForEmbedding = DecoderWithHead<EmbeddingHead>;

// Build heads of the backbone's width, on the last stage only. A backbone that ties its embeddings shares them with the
// language-modelling head: with several stages, the last one gets the embedding as well.
[[nodiscard]] ModulePtr<LanguageModellingHead> make_language_modelling_head(DecoderBackbone& backbone,
                                                                            const CausalLMHeadConfig& config = {});
[[nodiscard]] ModulePtr<DecoderForCausalLM> make_decoder_for_causal_lm(const ModulePtr<DecoderBackbone>& backbone,
                                                                       const CausalLMHeadConfig& config = {});
[[nodiscard]] ModulePtr<DecoderForClassification> make_decoder_for_classification(
    const ModulePtr<DecoderBackbone>& backbone, const ClassificationHeadConfig& config);
[[nodiscard]] ModulePtr<DecoderForEmbedding> make_decoder_for_embedding(const ModulePtr<DecoderBackbone>& backbone,
                                                                        const EmbeddingHeadConfig& config);

}  // namespace d9d
