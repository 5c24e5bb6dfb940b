// Tensor parallelism with activations sharded by sequence between blocks: an all_gather at the entry of a block, a
// reduce_scatter at its exit.
#pragma once

#include "d9d/blocks/head/vocabulary_context.h"
#include "d9d/blocks/linear/tensor_parallel_context.h"
#include "d9d/core/mesh/device_mesh.h"

namespace d9d {

// Rank r of the group has positions [r * S / W, (r + 1) * S / W) between blocks. Within a block column-parallel linears
// return features that stay on their rank. enter(), leave() and the functions of linears are collective.
class SequenceShardedTensorParallelContext final : public TensorParallelContext {
 public:
  explicit SequenceShardedTensorParallelContext(DeviceMesh ranks) : ranks_(std::move(ranks)) {}  // one axis
  [[nodiscard]] at::Tensor enter(const at::Tensor& x) const override;
  // Throws ConfigError unless the number of ranks divides the number of positions.
  [[nodiscard]] at::Tensor leave(const at::Tensor& summand) const override;
  // Throws ConfigError for a linear with both a bias and hooks or activation checkpointing of its own: the call that
  // they enclose would contain the bias, which every rank would add.
  [[nodiscard]] at::Tensor row_linear(const at::Tensor& y, const ModulePtr<Linear>& linear) const override;
  [[nodiscard]] VocabularyContextPtr vocabulary() const override;
  [[nodiscard]] DeviceMesh ranks() const override { return ranks_; }

 private:
  DeviceMesh ranks_;
};

}  // namespace d9d
