#include "d9d/blocks/head/classification_head.h"

#include <ATen/ATen.h>

#include "d9d/blocks/linear/tensor_parallel_context.h"

namespace d9d {

ClassificationHead::ClassificationHead(const ClassificationHeadConfig& config, std::int64_t hidden_size)
    : dropout(register_module<Dropout>("dropout", config.dropout)),
      score(register_module<Linear>(
          "score",
          LinearConfig{.in_features = hidden_size, .out_features = config.num_labels, .role = ParameterRole::kHead})) {}

std::optional<TensorPlan> ClassificationHead::tensor_plan(std::int64_t /*num_ranks*/) const {
  return plan_of_rows(*this);
}

void ClassificationHead::set_tensor_parallel_context(TensorParallelContextPtr context) {
  shards_ = context->ranks();
  share_rows(*this, shards_);
}

ClassificationOutput ClassificationHead::forward(const at::Tensor& hidden_states, const PoolingShared& shared) const {
  const PooledRows pooled = pooled_rows(hidden_states, shared, shards_);
  const at::Tensor scores = pooled.whole(score(dropout(pooled.rows)));
  return {.scores = scores.to(at::promote_types(scores.scalar_type(), at::kFloat))};
}

}  // namespace d9d
