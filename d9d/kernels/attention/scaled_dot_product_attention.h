// Attention by the fastest core that does what the call needs.
//
// Example
//   at::Tensor out = d9d::kernels::scaled_dot_product_attention({.query = q, .key = k, .value = v, .sinks = sinks},
//                                                               {.causal = true, .window_left = 127});
#pragma once

#include "d9d/kernels/attention/resolve_sdpa.h"

namespace d9d::kernels {

// What resolve_sdpa chooses for the call; shapes, gradients and errors as of the cores in sdpa.h.
[[nodiscard]] at::Tensor scaled_dot_product_attention(const SdpaInputs& inputs, const SdpaOptions& options,
                                                      const SdpaPreferences& preferences = {});

// Beside it the logsumexp, which torch_attention has not.
[[nodiscard]] SdpaOutput scaled_dot_product_attention_with_logsumexp(const SdpaInputs& inputs,
                                                                     const SdpaOptions& options,
                                                                     const SdpaPreferences& preferences = {});

}  // namespace d9d::kernels
