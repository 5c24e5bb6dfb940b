#include "d9d/kernels/attention/scaled_dot_product_attention.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>

#include "d9d/base/check.h"
#include "d9d/core/device/cuda_runtime.h"
#include "d9d/kernels/common/cuda_kernels.h"

namespace d9d::kernels {
namespace {

// Whether the call needs a feature that only eager_attention and the fused GPU kernels have.
bool is_beyond_torch(const SdpaNeeds& needs) { return needs.sinks || needs.window || needs.softcap || needs.logsumexp; }

constexpr std::int64_t kMostFeaturesWithLogsumexp = 248;

// The reason why no fused GPU kernel takes the call; null if one does.
const char* why_not_fused(const SdpaNeeds& needs, const SdpaDevice& device) {
  if (!device.is_cuda) return "there is no GPU";
  if (needs.mask) return "fused kernels take no mask";
  if (!device.is_half) return "fused kernels are for bf16 and half";
  if (device.num_features % 8 != 0 || device.num_features > 256) {
    return "fused kernels want up to 256 features a head, in a multiple of 8";
  }
  if (needs.logsumexp && device.num_features > kMostFeaturesWithLogsumexp) {
    return "the gradient of the logsumexp needs room for more features";
  }
  if (device.cuda_capability_major < 8) return "fused kernels need compute capability 8";
  if (!needs.softcap) return nullptr;
  if (device.is_deterministic) return "a softcap has no deterministic fused kernel";
  if (needs.logsumexp) return "a softcap has no fused gradient of the logsumexp";
  if (needs.key_rooms) return "a softcap has no fused kernel with keys that do not fill their rooms";
  return device.has_cudnn_graphs && device.num_features <= 128 ? nullptr
                                                               : "only cuDNN's graphs on Hopper have a softcap";
}

SdpaChoice fastest(const SdpaNeeds& needs, const SdpaDevice& device) {
  if (const char* const reason = why_not_fused(needs, device)) {
    if (is_beyond_torch(needs) || (needs.packed && device.is_cuda)) {
      return {.backend = SdpaBackend::kEager, .why = cat("eager has everything, and ", reason)};
    }
    return {.backend = SdpaBackend::kTorch, .why = cat("LibTorch has all that is needed, and ", reason)};
  }
  if (device.is_deterministic) {
    return {.backend = SdpaBackend::kFlash, .why = "FlashAttention-2 repeats its gradients bit by bit"};
  }
  if (!device.has_cudnn_graphs || device.num_features > 128) {
    const char* const reason = device.has_cudnn_graphs ? "up to 128 features a head" : "a Hopper GPU and a CUDA build";
    return {.backend = SdpaBackend::kFlash, .why = cat("LibTorch's FlashAttention-2; cuDNN's graphs want ", reason)};
  }
  return {.backend = SdpaBackend::kCudnn, .why = "cuDNN's graphs are the fastest kernels with what is needed"};
}

void check_flash(const SdpaNeeds& needs, const char* source, const char* name) {
  D9D_CHECK(!needs.mask, ConfigError, "[kernels::resolve_sdpa] expected no attention mask with ", name,
            ", which takes none, got one asked for by ", source, ". Use torch or eager.");
}

void check_torch(const SdpaNeeds& needs, const char* source) {
  const char* const what = needs.sinks ? "learnable sinks" : (needs.window ? "sliding window" : "softcap");
  D9D_CHECK(!needs.sinks && !needs.window && !needs.softcap, ConfigError, "[kernels::resolve_sdpa] expected no ", what,
            " with torch, which has none, got one asked for by ", source, ". Use eager.");
}

// The choice for a preference that `source` states.
struct ResolveSdpa {
  const SdpaRequest& request;
  const char* source;

  SdpaChoice operator()(const TorchSdpaConfig& torch) const {
    check_torch(request.needs, source);
    const bool is_packed_on_gpu = request.needs.packed && request.device.is_cuda;
    if (!is_packed_on_gpu && !request.needs.logsumexp) {
      return {.backend = SdpaBackend::kTorch,
              .kernels = torch.backends.value_or(std::vector<TorchSdpaKernel>()),
              .why = cat(source, " asks for torch")};
    }
    const char* const reason = why_not_fused(request.needs, request.device);
    return {.backend = reason == nullptr ? SdpaBackend::kFlash : SdpaBackend::kEager,
            .why = cat(source, " asks for torch, whose calls take no packed sequences on a GPU and return no logsumexp",
                       reason == nullptr ? "; its FlashAttention-2 does" : "")};
  }

  SdpaChoice operator()(const EagerSdpaConfig&) const {
    return {.backend = SdpaBackend::kEager, .why = cat(source, " asks for eager")};
  }

  SdpaChoice operator()(const FlashAttention2SdpaConfig&) const {
    D9D_CHECK(!request.needs.sinks, ConfigError,
              "[kernels::resolve_sdpa] expected no learnable sinks with flash_attention_2, which has none, got some "
              "asked for by ",
              source, ". Use flash_attention_4 or eager.");
    return best_instead_of("flash_attention_2");
  }

  SdpaChoice operator()(const FlashAttention4SdpaConfig&) const { return best_instead_of("flash_attention_4"); }

  SdpaChoice best_instead_of(const char* name) const {
    check_flash(request.needs, source, name);
    SdpaChoice choice = fastest(request.needs, request.device);
    choice.why = cat(source, " asks for ", name, ", which stands for the best kernel here: ", choice.why);
    return choice;
  }
};

SdpaOutput attend(const SdpaInputs& inputs, const SdpaOptions& options, const SdpaPreferences& preferences,
                  bool wants_logsumexp) {
  const std::int64_t batch = inputs.query.size(0);
  if (inputs.packed && batch > 1) {  // the cores take one row of sequences
    const at::Tensor query = detail::in_one_row(inputs.query), key = detail::in_one_row(inputs.key),
                     value = detail::in_one_row(inputs.value);
    const auto [out, logsumexp] = attend({.query = query,
                                          .key = key,
                                          .value = value,
                                          .mask = inputs.mask,
                                          .sinks = inputs.sinks,
                                          .packed = inputs.packed,
                                          .packed_keys = inputs.packed_keys},
                                         options, preferences, wants_logsumexp);
    return {.out = out.squeeze(0).unflatten(0, {batch, -1}),
            .logsumexp = wants_logsumexp ? logsumexp.squeeze(0).unflatten(1, {batch, -1}).transpose(0, 1) : logsumexp};
  }
  const SdpaNeeds needs{.mask = inputs.mask.has_value(),
                        .sinks = inputs.sinks.has_value(),
                        .window = options.window_left || options.window_right,
                        .packed = inputs.packed.has_value(),
                        .key_rooms = inputs.packed_keys && inputs.packed_keys->lengths.defined(),
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

SdpaDevice sdpa_device_of(const at::Tensor& query) {
  const auto dtype = query.scalar_type();
  const bool is_cuda = query.is_cuda();
  return {.is_cuda = is_cuda,
          .cuda_capability_major = is_cuda ? cuda_capability_major(query.device()) : 0,
          .has_cudnn_graphs = detail::has_cuda_kernels(query),
          .is_half = dtype == at::kBFloat16 || dtype == at::kHalf,
          .num_features = query.size(-1),
          .is_deterministic = at::globalContext().deterministicAlgorithms()};
}

SdpaChoice resolve_sdpa(const SdpaRequest& request) {
  const auto& [configured, environment] = request.preferences;
  if (configured) return std::visit(ResolveSdpa{request, "the configuration"}, *configured);
  if (environment) return std::visit(ResolveSdpa{request, "D9D_BACKEND_AUTO_SDPA"}, *environment);
  return fastest(request.needs, request.device);
}

at::Tensor scaled_dot_product_attention(const SdpaInputs& inputs, const SdpaOptions& options,
                                        const SdpaPreferences& preferences) {
  return attend(inputs, options, preferences, /*wants_logsumexp=*/false).out;
}

SdpaOutput scaled_dot_product_attention_with_logsumexp(const SdpaInputs& inputs, const SdpaOptions& options,
                                                       const SdpaPreferences& preferences) {
  return attend(inputs, options, preferences, /*wants_logsumexp=*/true);
}

}  // namespace d9d::kernels
