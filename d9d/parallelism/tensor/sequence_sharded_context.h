// Tensor parallelism with shards of the sequence between blocks: all_gather in, reduce_scatter out.
#pragma once

#include "d9d/blocks/linear/tensor_parallel_context.h"
#include "d9d/core/mesh/device_mesh.h"

namespace d9d {

// Rank r of the group has positions [r * S / W, (r + 1) * S / W). Linears give back columns that stay on their rank.
class SequenceShardedTensorParallelContext final : public TensorParallelContext {
 public:
  explicit SequenceShardedTensorParallelContext(DeviceMesh ranks) : ranks_(std::move(ranks)) {}  // one axis
  [[nodiscard]] at::Tensor enter(const at::Tensor& x) const override;
  // Throws ConfigError unless the ranks divide the sequence.
  [[nodiscard]] at::Tensor leave(const at::Tensor& summand) const override;

 private:
  DeviceMesh ranks_;
};

}  // namespace d9d
