#include "d9d/kernels/attention/scaled_dot_product_attention.h"

#include <ATen/ATen.h>

#include "d9d/base/check.h"

namespace d9d::kernels {
namespace {

SdpaOutput attend(const SdpaInputs& inputs, const SdpaOptions& options, const SdpaPreferences& preferences,
                  bool wants_logsumexp) {
  const SdpaNeeds needs{.mask = inputs.mask.has_value(),
                        .sinks = inputs.sinks.has_value(),
                        .window = options.window_left || options.window_right,
                        .packed = inputs.packed.has_value(),
                        .softcap = options.softcap.has_value(),
                        .logsumexp = wants_logsumexp};
  const auto choice =
      resolve_sdpa({.needs = needs, .device = sdpa_device_of(inputs.query), .preferences = preferences});
  switch (choice.backend) {
    case SdpaBackend::kCudnn:
      return fused_attention(inputs, options, FusedSdpaKernel::kCudnn);
    case SdpaBackend::kFlash:
      return fused_attention(inputs, options, FusedSdpaKernel::kFlash);
    case SdpaBackend::kTorch:
      return {.out = torch_attention(inputs, options, choice.kernels), .logsumexp = {}};
    case SdpaBackend::kEager:
      return eager_attention(inputs, options);
  }
  throw InternalError("[kernels::attention] unknown backend");
}

}  // namespace

at::Tensor scaled_dot_product_attention(const SdpaInputs& inputs, const SdpaOptions& options,
                                        const SdpaPreferences& preferences) {
  return attend(inputs, options, preferences, /*wants_logsumexp=*/false).out;
}

SdpaOutput scaled_dot_product_attention_with_logsumexp(const SdpaInputs& inputs, const SdpaOptions& options,
                                                       const SdpaPreferences& preferences) {
  return attend(inputs, options, preferences, /*wants_logsumexp=*/true);
}

}  // namespace d9d::kernels
