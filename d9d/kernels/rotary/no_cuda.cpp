#include "d9d/base/check.h"
#include "d9d/kernels/rotary/rotary_kernel.h"
#include "d9d/kernels/rotary/rotary_vectorized_kernel.h"

namespace d9d::kernels::detail {

namespace {

[[noreturn]] void refuse() {
  throw ConfigError("[kernels::apply_rotary] expected a build with CUDA. Build with nvcc on PATH.");
}

}  // namespace

void launch_rotary(const RotaryArgs& /*args*/, CUstream_st* /*stream*/) { refuse(); }

void launch_rotary_vectorized(const RotaryVectorizedArgs& /*args*/, CUstream_st* /*stream*/) { refuse(); }

}  // namespace d9d::kernels::detail
