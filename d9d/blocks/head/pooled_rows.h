// The positions that a pooled head uses.
//
// Example
//   PoolingShared{}                                            // all positions
//   PoolingShared{mask, batch_size}                            // one token a row, where the mask selects it
//   PoolingShared{mask}                                        // any number: the host waits for a GPU to count them
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include "d9d/base/record.h"

namespace d9d {

// Shared input of the classification and embedding heads.
struct PoolingShared {
  std::optional<at::Tensor> pooling_mask = {};     // [B, S], 1 selects a position; none selects all
  std::optional<std::int64_t> num_positions = {};  // that the mask selects: B for one token a row; none: counted
  static constexpr auto fields() {
    return record<PoolingShared>(field("pooling_mask", &PoolingShared::pooling_mask),
                                 field("num_positions", &PoolingShared::num_positions));
  }
};

// hidden_states [B, S, H] -> [n, H] in row-major order of the selected positions, or unchanged without a mask. Waits
// for a GPU only if n must be counted, since n determines a shape. If the mask does not select num_positions positions,
// throws ConfigError on the CPU and returns NaN on a GPU.
[[nodiscard]] at::Tensor pooled_rows(const at::Tensor& hidden_states, const PoolingShared& shared);

}  // namespace d9d
