#include <cuda_runtime_api.h>

#include <thread>

#include "d9d/kernels/attention/cudnn_graph.h"

extern "C" d9d::kernels::detail::CudnnGraph d9d_cudnn_graph();

namespace d9d::kernels::detail {
namespace {

// The key of causal attention on a few tokens. The kernels are the same for all sizes.
CudnnPlanKey small_plan(int device, bool is_backward) {
  constexpr std::int64_t kTokens = 128, kFeatures = 128;
  const CudnnStrides strides{.sequence = kTokens * kFeatures, .head = kFeatures, .position = kFeatures};
  return {.device = device,
          .is_backward = is_backward,
          .num_sequences = 1,
          .num_queries = kTokens,
          .num_keys = kTokens,
          .num_heads = 1,
          .num_kv_heads = 1,
          .num_features = kFeatures,
          .query = strides,
          .key = strides,
          .value = strides,
          .out = is_backward ? strides : CudnnStrides(),
          .grad_value = is_backward ? strides : CudnnStrides(),
          .scale = 1,
          .right = 0};
}

void make_plan(int device, bool is_backward) {
  // Errors are ignored here: they occur again, and are reported, when attention runs.
  if (cudaSetDevice(device) == cudaSuccess) (void)d9d_cudnn_graph().plan(small_plan(device, is_backward));
}

}  // namespace
}  // namespace d9d::kernels::detail

// Documented in core/device/start_cudnn.h.
extern "C" __attribute__((visibility("default"))) void d9d_start_cudnn(int device, std::jthread& thread) {
  int num_devices = 0;
  if (cudaGetDeviceCount(&num_devices) != cudaSuccess) return;  // makes the runtime initialise the driver
  thread = std::jthread([device] {
    using d9d::kernels::detail::make_plan;
    if (cudaSetDevice(device) != cudaSuccess) return;
    const std::jthread backward(make_plan, device, true);
    make_plan(device, false);
  });
}
