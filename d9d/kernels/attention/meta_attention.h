// Attention of tensors without values, for what fused kernels return and keep.
#pragma once

#include <ATen/core/Tensor.h>

#include "d9d/kernels/attention/sdpa.h"

namespace d9d::kernels::detail {

// inputs on the meta device. Returns [B, S, Hq, D]. Saves for backward what every fused kernel saves, on a CPU and on a
// GPU: query, key, value, the result and its logsumexp, and no logits.
[[nodiscard]] at::Tensor meta_attention(const SdpaInputs& inputs);

}  // namespace d9d::kernels::detail
