// A sequence whose positions are divided among ranks, and the logits of its last position. generate() builds one for
// each token.
//
// Example
//   const ShardedSequence sequence(ids, context.mesh(MeshDomain::kBatch).slice({"cp", "tp"}));
//   const SequenceTransfer state = model.model(sequence.input(), sequence.shared());
//   const at::Tensor logits = sequence.last_logits(model, state.hidden_states);
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "d9d/core/dtensor/position_cut.h"
#include "d9d/models/decoder/decoder_with_head.h"
#include "d9d/models/decoder/sequence.h"

namespace d9d {

class ShardedSequence {
 public:
  // ids: [1, length] int64, the same on all ranks. ranks: with the axes cp and tp, or none. The sequence is padded to
  // equal shards at its end, where causal attention does not see the padding.
  ShardedSequence(const at::Tensor& ids, const DeviceMesh& ranks);

  [[nodiscard]] const SequenceInput& input() const { return input_; }     // of this rank
  [[nodiscard]] const SequenceShared& shared() const { return shared_; }  // likewise

  // Collective over the ranks. hidden_states: of this rank, after the last layer of the model. Returns the logits [V]
  // of the last position of the whole sequence, on all ranks.
  [[nodiscard]] at::Tensor last_logits(const DecoderForCausalLM& model, const at::Tensor& hidden_states) const;

 private:
  DeviceMesh context_ranks_;  // the axis cp
  PositionCut::Place last_;   // of the last position
  SequenceInput input_;
  SequenceShared shared_;
};

}  // namespace d9d
