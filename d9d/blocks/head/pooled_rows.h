// The positions that a pooled head uses.
//
// Example
//   PoolingShared{}                                            // all positions
//   PoolingShared{mask, batch_size}                            // one token a row, where the mask selects it
//   PoolingShared{mask}                                        // any number: the host waits for a GPU to count them
//
//   const PooledRows pooled = pooled_rows(hidden_states, shared, ranks);
//   return pooled.whole(score(pooled.rows));                   // with the rows of all ranks
//
// Legend   B batch, S positions, H hidden size, W ranks that share a sequence, n selected positions
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include "d9d/base/record.h"
#include "d9d/core/collectives/position_ranks.h"

namespace d9d {

// Shared input of the classification and embedding heads: of whole sequences, also where ranks share them.
struct PoolingShared {
  std::optional<at::Tensor> pooling_mask = {};     // [B, S], 1 selects a position; none selects all
  std::optional<std::int64_t> num_positions = {};  // that the mask selects: B for one token a row; none: counted
  static constexpr auto fields() {
    return record<PoolingShared>(field("pooling_mask", &PoolingShared::pooling_mask),
                                 field("num_positions", &PoolingShared::num_positions));
  }
};

struct PooledRows {
  at::Tensor rows;                         // [n, H], or [B, S, H] without a mask. Those of other ranks are any values
  std::optional<at::Tensor> is_here = {};  // [n] or [B, S] bool: the position is one of this rank's; none: all are
  PositionRanks ranks = {};

  // Collective. outputs [n, ...] or [B, S, ...], of which a row depends on the same one of `rows` alone -> the same
  // with all ranks' rows (sum_over_positions).
  [[nodiscard]] at::Tensor whole(const at::Tensor& outputs) const;
};

// Local. hidden_states [B, S / W, H], this rank's positions; the mask covers all. Rows are the selected positions in
// row-major order. Waits for a GPU only if n must be counted, since n determines a shape. If the mask does not select
// num_positions positions, throws ConfigError on the CPU and returns NaN on a GPU.
[[nodiscard]] PooledRows pooled_rows(const at::Tensor& hidden_states, const PoolingShared& shared,
                                     const PositionRanks& ranks = {});

}  // namespace d9d
