// Attention by the core that resolve_sdpa() chooses: by default the fastest one that has what the call needs.
//
// Example
//   at::Tensor out = d9d::kernels::scaled_dot_product_attention({.query = q, .key = k, .value = v, .sinks = sinks},
//                                                               {.causal = true, .window_left = 127});
#pragma once

#include "d9d/kernels/attention/resolve_sdpa.h"

namespace d9d::kernels {

// Shapes, gradients and errors are those of the cores in sdpa.h; resolve_sdpa() throws, too.
[[nodiscard]] at::Tensor scaled_dot_product_attention(const SdpaInputs& inputs, const SdpaOptions& options,
                                                      const SdpaPreferences& preferences = {});

// Returns the logsumexp too. It never runs torch_attention, which has none.
[[nodiscard]] SdpaOutput scaled_dot_product_attention_with_logsumexp(const SdpaInputs& inputs,
                                                                     const SdpaOptions& options,
                                                                     const SdpaPreferences& preferences = {});

}  // namespace d9d::kernels
