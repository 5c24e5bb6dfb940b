// The parts of rms_norm's backward, by the kind of rows. Each starts all but the sum of `partials`, of which it writes
// as many as it returns, one a block.
#pragma once

#include "d9d/kernels/rms_norm/rms_norm_kernel.h"

namespace d9d::kernels::detail {

// Rows and weights aligned to 16 bytes; 0, and nothing is started, where rows do not fit into registers.
unsigned launch_rms_norm_backward_of_long_rows(const RmsNormBackwardArgs& args, CUstream_st* stream);

// Any rows.
unsigned launch_rms_norm_backward_of_any_row(const RmsNormBackwardArgs& args, CUstream_st* stream);

}  // namespace d9d::kernels::detail
