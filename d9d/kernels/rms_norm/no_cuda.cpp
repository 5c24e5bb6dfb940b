#include "d9d/base/check.h"
#include "d9d/kernels/rms_norm/rms_norm_kernel.h"

namespace d9d::kernels::detail {
namespace {

[[noreturn]] void refuse() {
  throw ConfigError("[kernels::rms_norm] expected a build with CUDA. Build with nvcc on PATH.");
}

}  // namespace

void launch_rms_norm_forward(const RmsNormForwardArgs& /*args*/, CUstream_st* /*stream*/) { refuse(); }

void launch_rms_norm_backward(const RmsNormBackwardArgs& /*args*/, CUstream_st* /*stream*/) { refuse(); }

}  // namespace d9d::kernels::detail
