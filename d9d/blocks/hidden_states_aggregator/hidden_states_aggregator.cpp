#include "d9d/blocks/hidden_states_aggregator/hidden_states_aggregator.h"

#include <utility>

#include <ATen/ATen.h>

#include "d9d/base/check.h"

namespace d9d {

HiddenStatesAggregator::HiddenStatesAggregator(HiddenStatesAggregationMode mode, std::optional<at::Tensor> mask)
    : mode_(mode), mask_(std::move(mask)) {
  D9D_CHECK(mode_ == HiddenStatesAggregationMode::kNo || mask_.has_value(), ConfigError,
            "[blocks::aggregator] expected an aggregation mask for the mean of hidden states, got none. Set "
            "hidden_states_agg_mask.");
}

void HiddenStatesAggregator::add(const at::Tensor& hidden_states) {
  if (mode_ == HiddenStatesAggregationMode::kNo) return;
  const at::ScalarType wide = hidden_states.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor weights = mask_->to(wide);                               // [B, S]
  const at::Tensor counts = weights.sum(1, /*keepdim=*/true).clamp_min(1);  // [B, 1]
  const at::Tensor mean = at::einsum("bsh,bs->bh", {hidden_states.to(wide), weights}) / counts;
  collected_.push_back(mean.to(hidden_states.scalar_type()));
}

std::optional<at::Tensor> HiddenStatesAggregator::pack_with_snapshot(const std::optional<at::Tensor>& incoming) {
  if (collected_.empty()) return incoming;
  const at::Tensor stacked = at::stack(std::exchange(collected_, {}));
  return incoming ? at::cat({*incoming, stacked}) : stacked;
}

}  // namespace d9d
