// The data that passes through a decoder: token ids, hidden states between stages, and the inputs that all stages
// share.
//
// Legend   B batch, S sequence, H hidden size, n hidden-state snapshots so far.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/base/record.h"
#include "d9d/core/packed_sequences/packed_sequences.h"

namespace d9d {

struct SequenceInput {   // into the first stage
  at::Tensor input_ids;  // [B, S] int64
  static constexpr auto fields() { return record<SequenceInput>(field("input_ids", &SequenceInput::input_ids)); }
};

// Between stages, and the output of a backbone.
struct SequenceTransfer {
  at::Tensor hidden_states;                          // [B, S, H]
  std::optional<at::Tensor> hidden_states_snapshot;  // [n, B, H]
  std::optional<at::Tensor> auxiliary_loss;          // scalar: the sum over the layers so far
  static constexpr auto fields() {
    using Sequence = SequenceTransfer;
    return record<Sequence>(field("hidden_states", &Sequence::hidden_states),
                            field("hidden_states_snapshot", &Sequence::hidden_states_snapshot),
                            field("auxiliary_loss", &Sequence::auxiliary_loss));
  }
};

// The input of a stage: ids on the first stage, the previous stage's transfer on the others.
using SequenceStageInput = std::variant<SequenceInput, SequenceTransfer>;

struct SequenceShared {                              // to every stage, and to every layer
  at::Tensor position_ids;                           // [B, S] int64
  std::optional<at::Tensor> hidden_states_agg_mask;  // [B, S], see HiddenStatesAggregator
  // Documents that do not see each other, in the order of the B * S positions; position_ids count from 0 in each. Under
  // context parallelism, which cuts all other members, these are the positions of all its ranks, and no document is in
  // two rows.
  std::optional<PackedSequences> packed = std::nullopt;
  // [n] int64, ascending: the indices of those of the B * S positions that are data. The others are padding, which is
  // not sent to experts and does not count in their balance. None: all. Real positions must not see padding, so it
  // stands at the end of a sequence, or is a document of `packed`.
  std::optional<at::Tensor> real_positions = std::nullopt;
  static constexpr auto fields() {
    return record<SequenceShared>(field("position_ids", &SequenceShared::position_ids),
                                  field("hidden_states_agg_mask", &SequenceShared::hidden_states_agg_mask),
                                  field("packed", &SequenceShared::packed),
                                  field("real_positions", &SequenceShared::real_positions));
  }
};

// SequenceShared together with the head's shared input.
template <class HeadShared>
struct SequenceHeadShared {
  SequenceShared sequence;
  HeadShared head;
  static constexpr auto fields() {
    return record<SequenceHeadShared>(field("sequence", &SequenceHeadShared::sequence),
                                      field("head", &SequenceHeadShared::head));
  }
};

}  // namespace d9d
