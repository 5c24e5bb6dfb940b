// The interface of a decoder without a head, for heads and pipelines.
#pragma once

#include <optional>

#include "d9d/blocks/embedding/vocabulary_splits.h"
#include "d9d/models/decoder/sequence.h"
#include "d9d/modules/module.h"
#include "d9d/pipelining/api/stage_boundary.h"
#include "d9d/pipelining/api/stage_info.h"

namespace d9d {

class DecoderBackbone : public Module {
 public:
  // Throws ConfigError unless the input is of the kind that this stage takes: ids on the first stage, a transfer on
  // others.
  [[nodiscard]] virtual SequenceTransfer forward(const SequenceStageInput& input,
                                                 const SequenceShared& shared) const = 0;

  // Shapes and dtypes of one microbatch at a boundary of this stage, as tensors on the meta device, derived only from
  // the shape of the pipeline's input. Called for inner boundaries only.
  [[nodiscard]] virtual SequenceTransfer stage_transfer(const SequenceInput& pipeline_input,
                                                        StageBoundary boundary) const = 0;

  [[nodiscard]] virtual std::int64_t hidden_size() const = 0;
  [[nodiscard]] virtual const VocabularySplits& vocabulary() const = 0;
  [[nodiscard]] virtual const PipelineStageInfo& stage() const = 0;
  // The distribution of the whole model's layers; none if the model does not state it.
  [[nodiscard]] virtual std::optional<LayerDistribution> layer_distribution() const { return std::nullopt; }
  // The embedding matrices, in the order of the vocabulary. Empty if this stage has none.
  [[nodiscard]] virtual std::vector<ParameterPtr> embedding_weights() const = 0;
  // The matrices of a language-modelling head that is tied to the embedding. Only on the last stage: if another stage
  // is the first, this one gets the embedding as well, with the same names and values.
  [[nodiscard]] virtual std::vector<ParameterPtr> tied_head_weights() = 0;
  [[nodiscard]] virtual bool ties_word_embeddings() const = 0;
};

}  // namespace d9d
