// The interface of a decoder for generate(): logits of the token after a sequence. For a model that is not split into
// stages: one_piece_decoder(); for the stages of a pipeline: loop/language_model/staged_decoder.h.
//
// Example
//   const auto decoder = one_piece_decoder(model);
//   const at::Tensor logits = decoder->last_logits(ids, /*sequence_ranks=*/{});
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "d9d/models/decoder/decoder_with_head.h"

namespace d9d {

class TokenModel {
 public:
  virtual ~TokenModel();

  // The parts of the model that this rank has.
  [[nodiscard]] virtual std::vector<ModulePtr<DecoderForCausalLM>> parts() const = 0;
  // The model, if a cache of keys and values serves it (decoding_batch.h) and last_logits() gives what its forward
  // gives; null by default.
  [[nodiscard]] virtual ModulePtr<DecoderForCausalLM> whole() const;
  // Collective over all ranks of the model. ids: [1, length] int64, the same on all ranks and on any device. Returns
  // the logits [V] of the last position, on all ranks. sequence_ranks: GenerateOptions.
  [[nodiscard]] virtual at::Tensor last_logits(const at::Tensor& ids, const DeviceMesh& sequence_ranks) = 0;
};

// Throws ConfigError for one of several pipeline stages.
[[nodiscard]] std::unique_ptr<TokenModel> one_piece_decoder(const ModulePtr<DecoderForCausalLM>& model);

}  // namespace d9d
