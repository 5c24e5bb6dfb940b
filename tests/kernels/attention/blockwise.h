// Attention whose keys are taken in two blocks, with gradients: what ring attention does, on one device.
#pragma once

#include "d9d/kernels/attention/attention_blocks.h"

namespace d9d::kernels::attention_testing {

// As a core of error_against_eager(). Takes an even number of keys, as many queries if causal, sinks, and packed
// sequences, or window_left if causal.
[[nodiscard]] SdpaOutput blockwise_attention(const SdpaInputs& inputs, const SdpaOptions& options);

}  // namespace d9d::kernels::attention_testing
