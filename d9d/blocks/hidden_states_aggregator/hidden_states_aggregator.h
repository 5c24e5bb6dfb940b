// Collects one vector for each sequence after every layer during forward, for embedding models and probes. Snapshots
// from earlier pipeline stages precede those of this stage.
//
// Example
//   HiddenStatesAggregator aggregator(HiddenStatesAggregationMode::kMean, mask);
//   aggregator.add(hidden_states);                             // [B, S, H], after the embedding and after each layer
//   auto snapshot = aggregator.pack_with_snapshot(incoming);   // [n, B, H]
//
// Legend   B batch, S positions, H hidden size, n snapshots, W tensor-parallel ranks
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/core/collectives/position_ranks.h"

namespace d9d {

enum class HiddenStatesAggregationMode : std::uint8_t {
  kNo,    // collects nothing
  kMean,  // mean over the positions that the mask keeps
};

class HiddenStatesAggregator {
 public:
  // mask [B, S], 1 keeps a position; a part of it for each rank of context parallelism. Throws ConfigError if the mode
  // is kMean and there is no mask. Collective over these ranks.
  HiddenStatesAggregator(HiddenStatesAggregationMode mode, const std::optional<at::Tensor>& mask,
                         PositionRanks ranks = {});

  // hidden_states [B, S / W, H]. A sequence whose mask keeps no position gives zeros. Gradients flow through the
  // snapshots, which are means over the positions of all ranks (sum_over_positions). Collective, in backward too.
  void add(const at::Tensor& hidden_states);

  // [n, B, H]: `incoming` followed by the collected vectors, which are then cleared. None if both are empty; with kNo
  // returns `incoming` unchanged.
  [[nodiscard]] std::optional<at::Tensor> pack_with_snapshot(const std::optional<at::Tensor>& incoming);

 private:
  HiddenStatesAggregationMode mode_;
  PositionRanks ranks_;
  at::Tensor weights_;                 // [B, S / W], the mask of this rank's positions
  at::Tensor counts_;                  // [B, 1], over all positions, at least 1
  std::vector<at::Tensor> collected_;  // [B, H] each
};

}  // namespace d9d
