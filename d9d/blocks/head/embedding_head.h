// A vector for each pooled position: optional projection, optional L2 normalisation.
#pragma once

#include "d9d/blocks/head/head_config.h"
#include "d9d/blocks/head/pooled_head.h"
#include "d9d/blocks/linear/linear.h"

namespace d9d {

struct EmbeddingOutput {
  at::Tensor embeddings;  // [n, dim], at least fp32; [B, S, dim] without a pooling mask
  static constexpr auto fields() { return record<EmbeddingOutput>(field("embeddings", &EmbeddingOutput::embeddings)); }
};

// State: projection.weight [embedding_dim, H] if there is a projection.
class EmbeddingHead : public PooledHead {
 public:
  using Shared = PoolingShared;
  using Output = EmbeddingOutput;

  EmbeddingHead(const EmbeddingHeadConfig& config, std::int64_t hidden_size);
  // hidden_states [B, S, H]; those of this rank, where ranks share sequences, while the mask and the output cover all.
  [[nodiscard]] EmbeddingOutput forward(const at::Tensor& hidden_states, const PoolingShared& shared) const;

  const bool normalizes;
  const ModulePtr<Linear> projection;  // null without embedding_dim
};

}  // namespace d9d
