// Attention by the core that resolve_sdpa() chooses, from preferences, the features that the call needs and the device:
// by default the fastest one that has what the call needs.
//
// Example
//   at::Tensor out = d9d::kernels::scaled_dot_product_attention({.query = q, .key = k, .value = v, .sinks = sinks},
//                                                               {.causal = true, .window_left = 127});
//
//   const auto choice = d9d::kernels::resolve_sdpa({.needs = {.window = true}, .device = sdpa_device_of(query)});
//   choice.backend    // SdpaBackend::kCudnn on a Hopper GPU
//   choice.why        // "cuDNN's graphs are the fastest kernels with what is needed"
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "d9d/kernels/attention/sdpa.h"

namespace d9d::kernels {

enum class SdpaBackend : std::uint8_t {
  kCudnn,  // fused_attention with kCudnn
  kFlash,  // fused_attention with kFlash
  kTorch,  // torch_attention
  kEager,  // eager_attention
};

struct SdpaPreferences {
  std::optional<SdpaConfig> configured = std::nullopt;   // by the model's configuration, which has precedence
  std::optional<SdpaConfig> environment = std::nullopt;  // by D9D_BACKEND_AUTO_SDPA
};

// The inputs, options and results of a call.
struct SdpaNeeds {
  bool mask = false;
  bool sinks = false;
  bool window = false;
  bool packed = false;
  bool key_rooms = false;  // packed_keys with lengths
  bool softcap = false;
  bool logsumexp = false;  // the caller uses the returned logsumexp
};

// The device and dtype of a call.
struct SdpaDevice {
  bool is_cuda = false;
  int cuda_capability_major = 0;
  bool has_cudnn_graphs = false;  // Hopper, in a build with CUDA
  bool is_half = false;           // bf16 or half
  std::int64_t num_features = 128;
  bool is_deterministic = false;  // exclude kernels whose gradients vary from run to run
};

// The SdpaDevice of a query [.., D], from its device and dtype, the build, and
// at::globalContext().deterministicAlgorithms(), which launch.deterministic sets.
[[nodiscard]] SdpaDevice sdpa_device_of(const at::Tensor& query);

struct SdpaRequest {
  SdpaNeeds needs = {};
  SdpaDevice device = {};
  SdpaPreferences preferences = {};
};

struct SdpaChoice {
  SdpaBackend backend;
  std::vector<TorchSdpaKernel> kernels = {};  // for torch_attention
  std::string why;                            // one sentence for the log
};

// Follows the configuration if it is set, else the environment, else takes the fastest core that does what is needed on
// the device. Throws ConfigError for a preference that lacks a needed feature, on any device: the flash kinds have no
// mask, flash_attention_2 has no sinks, and torch has no sinks, windows or softcap.
[[nodiscard]] SdpaChoice resolve_sdpa(const SdpaRequest& request);

// Shapes, gradients and errors are those of the cores in sdpa.h, but packed sequences, and their packed_keys, may be in
// B rows, one after another; resolve_sdpa() throws, too.
[[nodiscard]] at::Tensor scaled_dot_product_attention(const SdpaInputs& inputs, const SdpaOptions& options,
                                                      const SdpaPreferences& preferences = {});

// Returns the logsumexp too. It never runs torch_attention, which has none.
[[nodiscard]] SdpaOutput scaled_dot_product_attention_with_logsumexp(const SdpaInputs& inputs,
                                                                     const SdpaOptions& options,
                                                                     const SdpaPreferences& preferences = {});

}  // namespace d9d::kernels
