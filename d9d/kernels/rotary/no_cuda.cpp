#include "d9d/base/check.h"
#include "d9d/kernels/rotary/rotary_kernel.h"

namespace d9d::kernels::detail {

void launch_rotary(const RotaryArgs& /*args*/, CUstream_st* /*stream*/) {
  throw ConfigError("[kernels::apply_rotary] expected a build with CUDA. Build with nvcc on PATH.");
}

}  // namespace d9d::kernels::detail
