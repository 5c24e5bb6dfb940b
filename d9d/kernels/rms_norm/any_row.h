// The backward of rms_norm for rows that are not aligned to 16 bytes, long ones, and doubles.
#pragma once

#include "d9d/kernels/rms_norm/rms_norm_kernel.h"

namespace d9d::kernels::detail {

// Starts all but the sum of `partials`, of which it writes as many as it returns, one a block.
unsigned launch_rms_norm_backward_of_any_row(const RmsNormBackwardArgs& args, CUstream_st* stream);

}  // namespace d9d::kernels::detail
