// The base of heads that compute with pooled rows: how ranks that share sequences compute them.
#pragma once

#include "d9d/blocks/head/pooled_rows.h"
#include "d9d/modules/module.h"

namespace d9d {

// Each rank computes all selected rows, and uses those of its positions (PooledRows::whole). Parameters are replicated,
// and summed as those of norms; a Dropout, of adapters too, draws for all rows.
class PooledHead : public Module {
 public:
  [[nodiscard]] std::optional<TensorPlan> tensor_plan(std::int64_t num_ranks) const override;
  void set_tensor_parallel_context(TensorParallelContextPtr context) override;
  // Local. Context parallelism: which positions each of its ranks, of one axis, has.
  void set_context_ranks(const PositionCut& ranks);

 protected:
  [[nodiscard]] const PositionRanks& position_ranks() const { return ranks_; }

 private:
  void share_rows(const PositionCut& ranks);

  PositionRanks ranks_;
};

}  // namespace d9d
