#include "d9d/blocks/hidden_states_aggregator/hidden_states_aggregator.h"

#include <utility>

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/core/collectives/differentiable.h"

namespace d9d {

HiddenStatesAggregator::HiddenStatesAggregator(HiddenStatesAggregationMode mode, const std::optional<at::Tensor>& mask,
                                               PositionRanks ranks)
    : mode_(mode), ranks_(std::move(ranks)) {
  if (mode_ == HiddenStatesAggregationMode::kNo) return;
  D9D_CHECK(mask.has_value(), ConfigError,
            "[blocks::aggregator] expected an aggregation mask for the mean of hidden states, got none. Set "
            "hidden_states_agg_mask.");
  weights_ = PositionCut(ranks_.of_shards).part_of(*mask, /*dim=*/1);
  counts_ = mask->to(at::promote_types(mask->scalar_type(), at::kFloat)).sum(1, /*keepdim=*/true);
  if (const DeviceMesh context = ranks_.of_context.ranks(); context.num_ranks() > 1) {
    counts_ = all_reduce_forward(counts_, context.lane_communicator());
  }
  counts_ = counts_.clamp_min(1);
}

void HiddenStatesAggregator::add(const at::Tensor& hidden_states) {
  if (mode_ == HiddenStatesAggregationMode::kNo) return;
  const at::ScalarType wide = hidden_states.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor sums =
      sum_over_positions(at::einsum("bsh,bs->bh", {hidden_states.to(wide), weights_.to(wide)}), ranks_);
  collected_.push_back((sums / counts_.to(wide)).to(hidden_states.scalar_type()));
}

std::optional<at::Tensor> HiddenStatesAggregator::pack_with_snapshot(const std::optional<at::Tensor>& incoming) {
  if (collected_.empty()) return incoming;
  const at::Tensor stacked = at::stack(std::exchange(collected_, {}));
  return incoming ? at::cat({*incoming, stacked}) : stacked;
}

}  // namespace d9d
