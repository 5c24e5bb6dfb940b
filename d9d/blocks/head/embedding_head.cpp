#include "d9d/blocks/head/embedding_head.h"

#include <ATen/ATen.h>

namespace d9d {

EmbeddingHead::EmbeddingHead(const EmbeddingHeadConfig& config, std::int64_t hidden_size)
    : normalizes(config.normalize),
      projection(config.embedding_dim
                     ? register_module<Linear>("projection", LinearConfig{.in_features = hidden_size,
                                                                          .out_features = *config.embedding_dim,
                                                                          .role = ParameterRole::kHead})
                     : nullptr) {}

EmbeddingOutput EmbeddingHead::forward(const at::Tensor& hidden_states, const PoolingShared& shared) const {
  constexpr double kSmallestNorm = 1e-12;  // as torch.nn.functional.normalize
  const PooledRows pooled = pooled_rows(hidden_states, shared, position_ranks());
  at::Tensor rows = pooled.whole(projection ? projection(pooled.rows) : pooled.rows);
  rows = rows.to(at::promote_types(rows.scalar_type(), at::kFloat));
  if (normalizes) rows = rows / rows.norm(2, -1, /*keepdim=*/true).clamp_min(kSmallestNorm);
  return {.embeddings = rows};
}

}  // namespace d9d
