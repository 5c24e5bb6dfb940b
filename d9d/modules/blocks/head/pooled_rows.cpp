#include "d9d/modules/blocks/head/pooled_rows.h"

#include <ATen/ATen.h>

namespace d9d {

at::Tensor pooled_rows(const at::Tensor& hidden_states, const PoolingShared& shared) {
  if (!shared.pooling_mask) return hidden_states;
  const at::Tensor rows = shared.pooling_mask->eq(1).reshape({-1}).nonzero().squeeze(1);
  return hidden_states.reshape({-1, hidden_states.size(-1)}).index_select(0, rows);
}

}  // namespace d9d
