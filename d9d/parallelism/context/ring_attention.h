// Attention over ranks that each hold some positions of a causal or full sequence (Liu et al., arXiv:2310.01889): a
// rank computes with the keys and values of one rank after another while those of the next are copied. Of causal
// attention it computes only the pairs that see each other, as rectangles without a mask: with the cut of
// context_parallel_cut() all queries with the first half of an earlier rank's keys, or the second half of its queries
// with all keys of a later one. Packed sequences are cut where a rectangle is: at most one of each row reaches into it.
// With a window the rectangles are those of each range of queries with each of keys, without the positions between
// which the window lies; queries that see all keys are one of their own where the others are fewer than keys. Keeps the
// rank's own keys and values for backward, in which the others pass by again; of two ranks it keeps both.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "d9d/core/dtensor/position_cut.h"
#include "d9d/kernels/attention/attention_blocks.h"
#include "d9d/parallelism/context/packed_rows.h"
#include "d9d/parallelism/context/peer_block_exchange.h"

namespace d9d {

// Why the ring does not take a call: "takes no attention mask". Empty if it does. The same on all ranks.
[[nodiscard]] std::string ring_refusal(const kernels::SdpaInputs& inputs, const kernels::SdpaOptions& options,
                                       const PositionCut& positions);

// Collective, and collective in backward. inputs: of this rank's positions. exchange: fits key and value, over the
// ranks of `positions`. rows: of inputs.packed, if there are; null: made here. Returns [B, S / W, Hq, D].
[[nodiscard]] at::Tensor ring_attention(const kernels::SdpaInputs& inputs, const kernels::SdpaOptions& options,
                                        const kernels::SdpaPreferences& preferences, const PositionCut& positions,
                                        const std::shared_ptr<const PeerBlockExchange>& exchange,
                                        std::shared_ptr<const PackedRows> rows = nullptr);

// A block of pairs of this rank's queries and another's keys, by their places on these ranks.
struct RingBlock {
  FlatRange queries;
  FlatRange keys;
  bool is_causal = false;  // the first query sees the first key, the next one more, and so on; otherwise each sees all
  std::int64_t distance = 0;  // of a window: the position of the first query less that of the first key
  bool operator==(const RingBlock&) const = default;
};

// Local. The pairs of a sequence of `length` positions that see each other, as far as causality and the left side of
// the window of `options` say. Each query of a block sees a key of it.
[[nodiscard]] std::vector<RingBlock> ring_blocks(const PositionCut& positions, std::int64_t length,
                                                 std::int64_t rank_of_queries, std::int64_t rank_of_keys,
                                                 const kernels::SdpaOptions& options);

}  // namespace d9d
