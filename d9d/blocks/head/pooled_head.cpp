#include "d9d/blocks/head/pooled_head.h"

#include "d9d/blocks/linear/tensor_parallel_context.h"
#include "d9d/blocks/regularization/dropout.h"

namespace d9d {

std::optional<TensorPlan> PooledHead::tensor_plan(std::int64_t /*num_ranks*/) const {
  TensorPlan plan{.input = TensorPlan::Edge::kShard, .output = TensorPlan::Edge::kWhole};
  for (const auto& [name, parameter] : named_parameters()) plan.parameters.push_back({parameter, Replicate{}});
  return plan;
}

void PooledHead::set_tensor_parallel_context(TensorParallelContextPtr context) {
  ranks_.of_shards = context->ranks();
  share_rows(PositionCut(ranks_.of_shards));
}

void PooledHead::set_context_ranks(const PositionCut& ranks) {
  ranks_.of_context = ranks;
  share_rows(ranks);
}

void PooledHead::share_rows(const PositionCut& ranks) {
  for_each_module([&](const std::string&, Module& each) {
    if (auto* const dropout = dynamic_cast<Dropout*>(&each)) dropout->add_cut({.ranks = ranks});
  });
}

}  // namespace d9d
