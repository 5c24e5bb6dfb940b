// Context parallelism by an all-gather of keys and values: each rank attends with its own queries to the keys of all
// ranks (as in Llama 3, arXiv:2407.21783, section 3.3.2).
#pragma once

#include <memory>

#include "d9d/blocks/attention/attention_context.h"
#include "d9d/core/dtensor/position_cut.h"
#include "d9d/parallelism/context/packed_rows.h"

namespace d9d {

// Each rank has its positions of the cut, as context_parallel_shard() splits them. Causality, windows, sinks, masks and
// packed sequences work as on one rank. attend() is collective: it runs one all_gather in forward and one
// reduce_scatter in backward, and calls the kernels once for each range of positions of this rank, for packed sequences
// with PackedKeys. Throws ConfigError for packed sequences with a window of attention that is not causal.
class AllGatherAttentionContext final : public AttentionContext {
 public:
  explicit AllGatherAttentionContext(PositionCut positions) : positions_(std::move(positions)) {}  // over one axis
  [[nodiscard]] at::Tensor attend(const kernels::SdpaInputs& inputs, const kernels::SdpaOptions& options,
                                  const kernels::SdpaPreferences& preferences) const override;

 private:
  PositionCut positions_;
  std::shared_ptr<LastPackedRows> packed_ = std::make_shared<LastPackedRows>();
};

}  // namespace d9d
