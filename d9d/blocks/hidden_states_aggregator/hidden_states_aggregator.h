// Collects one vector for each sequence after every layer during forward, for embedding models and probes. Snapshots
// from earlier pipeline stages precede those of this stage.
//
// Example
//   HiddenStatesAggregator aggregator(HiddenStatesAggregationMode::kMean, mask);
//   aggregator.add(hidden_states);                             // [B, S, H], after the embedding and after each layer
//   auto snapshot = aggregator.pack_with_snapshot(incoming);   // [n, B, H]
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace d9d {

enum class HiddenStatesAggregationMode : std::uint8_t {
  kNo,    // collects nothing
  kMean,  // mean over the positions that the mask keeps
};

class HiddenStatesAggregator {
 public:
  // mask [B, S], 1 keeps a position. Throws ConfigError if the mode is kMean and there is no mask.
  HiddenStatesAggregator(HiddenStatesAggregationMode mode, std::optional<at::Tensor> mask);

  // hidden_states [B, S, H]. A sequence whose mask keeps no position gives zeros. Gradients flow through the snapshots.
  void add(const at::Tensor& hidden_states);

  // [n, B, H]: `incoming` followed by the collected vectors, which are then cleared. None if both are empty; with kNo
  // returns `incoming` unchanged.
  [[nodiscard]] std::optional<at::Tensor> pack_with_snapshot(const std::optional<at::Tensor>& incoming);

 private:
  HiddenStatesAggregationMode mode_;
  std::optional<at::Tensor> mask_;
  std::vector<at::Tensor> collected_;  // [B, H] each
};

}  // namespace d9d
