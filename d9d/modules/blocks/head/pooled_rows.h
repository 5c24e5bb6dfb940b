// The positions that a pooled head looks at.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include "d9d/base/record.h"

namespace d9d {

// Shared input of the classification and embedding heads.
struct PoolingShared {
  std::optional<at::Tensor> pooling_mask;  // [B, S], 1 selects a position; none selects all
  static constexpr auto fields() { return record<PoolingShared>(field("pooling_mask", &PoolingShared::pooling_mask)); }
};

// hidden_states [B, S, H] -> [n, H] in row-major order of the selected positions, or unchanged without a mask.
// On CUDA a mask costs one wait for the device: how many rows there are decides a shape.
[[nodiscard]] at::Tensor pooled_rows(const at::Tensor& hidden_states, const PoolingShared& shared);

}  // namespace d9d
