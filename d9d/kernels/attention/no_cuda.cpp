#include "d9d/base/check.h"
#include "d9d/kernels/attention/attention_kernel.h"

namespace d9d::kernels::detail {

void launch_packed_offsets(const PackedOffsetsArgs& /*args*/, CUstream_st* /*stream*/) {
  throw ConfigError("[kernels::attention] expected a build with CUDA. Build with nvcc on PATH.");
}

void launch_sink_gradient(const SinkGradientArgs& /*args*/, CUstream_st* /*stream*/) {
  throw ConfigError("[kernels::attention] expected a build with CUDA. Build with nvcc on PATH.");
}

}  // namespace d9d::kernels::detail
