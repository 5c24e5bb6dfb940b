#include "d9d/kernels/attention/prepare_attention.h"

#include <future>
#include <string>

#include <ATen/Context.h>
#include <c10/core/DeviceGuard.h>

#include "d9d/core/device/cuda_library.h"
#include "d9d/kernels/attention/cudnn_graph.h"
#include "d9d/kernels/device/cuda_kernels.h"

namespace d9d::kernels {
namespace {

// A few tokens: the kernels are the same for all sizes.
detail::CudnnPlanKey small_plan(c10::Device device) {
  constexpr std::int64_t kTokens = 128, kFeatures = 128;
  const detail::CudnnStrides strides{.sequence = kTokens * kFeatures, .head = kFeatures, .position = kFeatures};
  return {.device = device.has_index() ? device.index() : 0,
          .num_sequences = 1,
          .num_queries = kTokens,
          .num_keys = kTokens,
          .num_heads = 1,
          .num_kv_heads = 1,
          .num_features = kFeatures,
          .query = strides,
          .key = strides,
          .value = strides,
          .scale = 1,
          .right = 0};
}

}  // namespace

void prepare_attention(c10::Device device) {
  const bool runs_graphs = device.is_cuda() && detail::has_cuda_kernels(device);
  if (!runs_graphs || at::globalContext().deterministicAlgorithms()) return;
  const auto graph = reinterpret_cast<detail::GetCudnnGraph>(cuda_library_symbol("d9d_cudnn_graph"))();
  const auto make = [&](bool is_backward) {
    const c10::DeviceGuard guard(device);
    detail::CudnnPlanKey key = small_plan(device);
    key.is_backward = is_backward;
    std::string error;
    (void)graph.workspace_bytes(key, error);
  };
  auto backward = std::async(std::launch::async, make, true);
  make(false);
  backward.get();
}

}  // namespace d9d::kernels
