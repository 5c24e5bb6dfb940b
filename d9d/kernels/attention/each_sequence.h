// Packed sequences on a CPU, where their lengths can be read: one call each.
#pragma once

#include <functional>

#include "d9d/kernels/attention/sdpa.h"

namespace d9d::kernels::detail {

// `core` on every sequence of inputs.packed, which is there, joined. An undefined logsumexp stays so.
[[nodiscard]] SdpaOutput each_sequence(
    const std::function<SdpaOutput(const SdpaInputs& sequence, const SdpaOptions& options)>& core,
    const SdpaInputs& inputs, const SdpaOptions& options);

}  // namespace d9d::kernels::detail
