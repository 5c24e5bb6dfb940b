// A decoder backbone with several named heads, all of which run on every microbatch.
//
// Example
//   auto model = make_module<DecoderWithHeads>(backbone, std::map<std::string, HeadConfig>{
//       {"lm", CausalLMHeadConfig{}}, {"intent", ClassificationHeadConfig{.num_labels = 12}}});
//   auto output = model(SequenceInput{ids}, {{position_ids}, {{"lm", LanguageModellingShared{labels}},
//                                                             {"intent", PoolingShared{mask}}}});
#pragma once

#include <map>
#include <string>
#include <variant>

#include "d9d/models/decoder/decoder_with_head.h"

namespace d9d {

using AnyHead = std::variant<ModulePtr<LanguageModellingHead>, ModulePtr<ClassificationHead>, ModulePtr<EmbeddingHead>>;
using AnyHeadShared = std::variant<LanguageModellingShared, PoolingShared>;
using AnyHeadOutput = std::variant<LanguageModellingOutput, ClassificationOutput, EmbeddingOutput>;

// A head of the configured kind and of the backbone's width. Only for the last stage.
[[nodiscard]] AnyHead build_decoder_head(const HeadConfig& config, DecoderBackbone& backbone);

struct SequenceHeadsShared {
  SequenceShared sequence;
  std::map<std::string, AnyHeadShared> heads;  // one for each head
  static constexpr auto fields() {
    return record<SequenceHeadsShared>(field("sequence", &SequenceHeadsShared::sequence),
                                       field("heads", &SequenceHeadsShared::heads));
  }
};

struct DecoderHeadsOutput {
  std::map<std::string, AnyHeadOutput> heads;
  std::optional<at::Tensor> hidden_states_snapshot;  // [n, B, H]
  std::optional<at::Tensor> auxiliary_loss;          // scalar; to be added to the loss
  static constexpr auto fields() {
    using Output = DecoderHeadsOutput;
    return record<Output>(field("heads", &Output::heads),
                          field("hidden_states_snapshot", &Output::hidden_states_snapshot),
                          field("auxiliary_loss", &Output::auxiliary_loss));
  }
};

// Children: model, and on the last stage heads.<name>.
class DecoderWithHeads : public Module {
 public:
  using Output = std::variant<SequenceTransfer, DecoderHeadsOutput>;  // the last stage returns the second

  DecoderWithHeads(const ModulePtr<DecoderBackbone>& backbone, const std::map<std::string, HeadConfig>& configs);
  // Throws ConfigError that names the head if its shared input is missing or of another kind.
  [[nodiscard]] Output forward(const SequenceStageInput& input, const SequenceHeadsShared& shared) const;

  [[nodiscard]] SequenceTransfer stage_transfer(const SequenceInput& pipeline_input, StageBoundary boundary) const {
    return model->stage_transfer(pipeline_input, boundary);
  }

  const ModulePtr<DecoderBackbone> model;
  const std::map<std::string, AnyHead> heads;  // empty on all stages but the last
};

}  // namespace d9d
