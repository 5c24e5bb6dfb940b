// Which attention core runs: a choice from what is preferred, what a call needs and where it runs.
//
// Example
//   const auto choice = d9d::kernels::resolve_sdpa({.needs = {.window = true}, .device = device_of(query)});
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
  std::optional<SdpaConfig> configured = std::nullopt;   // by the model's configuration: wins
  std::optional<SdpaConfig> environment = std::nullopt;  // by D9D_BACKEND_AUTO_SDPA: second
};

// What the core is handed.
struct SdpaNeeds {
  bool mask = false;
  bool sinks = false;
  bool window = false;
  bool packed = false;
  bool softcap = false;
  bool logsumexp = false;  // is returned
};

// Where it runs.
struct SdpaDevice {
  bool is_cuda = false;
  int cuda_capability_major = 0;
  bool has_cudnn_graphs = false;  // Hopper, in a build with CUDA
  bool is_half = false;           // bf16 or half
  std::int64_t num_features = 128;
  bool is_deterministic = false;  // refuse kernels whose gradients vary from run to run
};

// Of a tensor [.., D]: its device, the build and at::globalContext().deterministicAlgorithms(), which
// launch.deterministic sets.
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

// Configuration, then environment, then the fastest core that does what is needed on the device. Throws ConfigError for
// a preference that cannot do what is needed, on whatever device: flash kinds with a mask, flash_attention_2 with
// sinks, torch with sinks, a window or a softcap.
[[nodiscard]] SdpaChoice resolve_sdpa(const SdpaRequest& request);

}  // namespace d9d::kernels
