// Context parallelism by gathering keys and values: each rank attends with its own queries to all keys before them
// (as in Llama 3, arXiv:2407.21783, section 3.3.2).
#pragma once

#include "d9d/blocks/attention/attention_context.h"
#include "d9d/core/mesh/device_mesh.h"

namespace d9d {

// Rank r of the group has positions [r * S / W, (r + 1) * S / W), as context_parallel_shard() cuts. Causality, windows,
// sinks and masks work as on one rank. One all_gather forward, one reduce_scatter backward. Later ranks see more keys
// and do more work.
class AllGatherAttentionContext final : public AttentionContext {
 public:
  explicit AllGatherAttentionContext(DeviceMesh ranks) : ranks_(std::move(ranks)) {}  // one axis
  [[nodiscard]] at::Tensor attend(const AttentionCore& core, const kernels::SdpaInputs& inputs,
                                  const kernels::SdpaOptions& options) const override;

 private:
  DeviceMesh ranks_;
};

}  // namespace d9d
