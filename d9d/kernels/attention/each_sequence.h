// Attention of packed sequences on a CPU by one call per sequence: there cu_seqlens can be read without synchronising.
#pragma once

#include <functional>

#include "d9d/kernels/attention/sdpa.h"

namespace d9d::kernels::detail {

// Calls `core` on every sequence of inputs.packed, which must be set, and concatenates the results. The logsumexp is
// undefined if `core` returns none. Throws ConfigError for cu_seqlens that do not fit the inputs.
[[nodiscard]] SdpaOutput each_sequence(
    const std::function<SdpaOutput(const SdpaInputs& sequence, const SdpaOptions& options)>& core,
    const SdpaInputs& inputs, const SdpaOptions& options);

}  // namespace d9d::kernels::detail
