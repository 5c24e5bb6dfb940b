// Tensor parallelism with activations sharded by sequence between blocks: an all_gather at the entry of a block, a
// reduce_scatter at its exit.
#pragma once

#include <memory>

#include "d9d/blocks/head/vocabulary_context.h"
#include "d9d/blocks/linear/tensor_parallel_context.h"
#include "d9d/core/mesh/device_mesh.h"
#include "d9d/parallelism/exchange/lane_exchanges.h"
#include "d9d/parallelism/tensor/peer_row_exchange.h"
#include "d9d/parallelism/tensor/tensor_parallel_config.h"

namespace d9d {

// Rank r of the group has positions [r * S / W, (r + 1) * S / W) between blocks. Within a block column-parallel linears
// return features that stay on their rank. enter(), leave() and the functions of linears are collective.
class SequenceShardedTensorParallelContext final : public TensorParallelContext {
 public:
  explicit SequenceShardedTensorParallelContext(DeviceMesh ranks, const TensorParallelConfig& config = {})  // one axis
      : ranks_(std::move(ranks)),
        config_(config),
        exchanges_(std::make_shared<LaneExchanges<PeerRowExchange>>(ranks_, config.exchange)) {}
  [[nodiscard]] at::Tensor enter(const at::Tensor& x) const override;
  // Throws ConfigError unless the number of ranks divides the number of positions.
  [[nodiscard]] at::Tensor leave(const at::Tensor& summand) const override;
  // By copies between the memory of ranks, beside the products, if the configuration and the ranks allow it and linears
  // are_products(); so are the two functions below. Throws ConfigError if the configuration demands copies and the
  // ranks cannot.
  [[nodiscard]] std::vector<at::Tensor> column_linears(const at::Tensor& x,
                                                       const std::vector<ModulePtr<Linear>>& linears) const override;
  // Hooks and activation checkpointing of the linear enclose its product, without the bias.
  [[nodiscard]] at::Tensor row_linear(const at::Tensor& y, const ModulePtr<Linear>& linear) const override;
  [[nodiscard]] at::Tensor row_silu_mul_linear(const at::Tensor& gate, const at::Tensor& up,
                                               const ModulePtr<Linear>& linear) const override;
  [[nodiscard]] VocabularyContextPtr vocabulary() const override;
  [[nodiscard]] DeviceMesh ranks() const override { return ranks_; }
  [[nodiscard]] std::shared_ptr<ExchangeMemory> memory() const { return exchanges_; }  // of copies

 private:
  void check_shards(const at::Tensor& whole) const;
  // For shards of so many elements; null: by the communicator.
  [[nodiscard]] kernels::RowExchangePtr exchange(std::int64_t num_elements, const at::Tensor& like) const;

  DeviceMesh ranks_;
  TensorParallelConfig config_;
  std::shared_ptr<LaneExchanges<PeerRowExchange>> exchanges_;
};

}  // namespace d9d
