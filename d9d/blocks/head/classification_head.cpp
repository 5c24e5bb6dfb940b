#include "d9d/blocks/head/classification_head.h"

#include <ATen/ATen.h>

namespace d9d {

ClassificationHead::ClassificationHead(const ClassificationHeadConfig& config, std::int64_t hidden_size)
    : dropout(register_module<Dropout>("dropout", config.dropout)),
      score(register_module<Linear>(
          "score",
          LinearConfig{.in_features = hidden_size, .out_features = config.num_labels, .role = ParameterRole::kHead})) {}

ClassificationOutput ClassificationHead::forward(const at::Tensor& hidden_states, const PoolingShared& shared) const {
  const PooledRows pooled = pooled_rows(hidden_states, shared, position_ranks());
  const at::Tensor scores = pooled.whole(score(dropout(pooled.rows)));
  return {.scores = scores.to(at::promote_types(scores.scalar_type(), at::kFloat))};
}

}  // namespace d9d
