// Which attention core a layer runs, decided once when the layer is built.
//
// Example
//   const auto choice = d9d::kernels::resolve_sdpa({.needs = {.window = true}});
//   choice.backend    // SdpaBackend::kEager
//   choice.why        // "sinks and windows need eager"
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "d9d/kernels/attention/sdpa.h"

namespace d9d::kernels {

enum class SdpaBackend : std::uint8_t { kTorch, kEager };

// What a configuration can ask for. The flash kinds name kernels of other packages; they run on LibTorch's fused
// kernels, and with sinks or a window on eager.
enum class SdpaKind : std::uint8_t { kFlashAttention4, kFlashAttention2, kTorch, kEager };

struct SdpaSelection {
  SdpaKind kind;
  std::vector<TorchSdpaKernel> kernels = {};  // for kTorch: the only ones allowed, in order; empty: all
};

// What the layer will hand to its core.
struct SdpaNeeds {
  bool mask = false;
  bool sinks = false;
  bool window = false;
};

struct SdpaRequest {
  SdpaNeeds needs = {};
  std::optional<SdpaSelection> configured = std::nullopt;   // from the model's configuration: wins
  std::optional<SdpaSelection> environment = std::nullopt;  // from D9D_BACKEND_AUTO_SDPA: second
};

struct SdpaChoice {
  SdpaBackend backend;
  std::vector<TorchSdpaKernel> kernels = {};  // for torch_attention
  std::string why;                            // one sentence for the log
};

// Configuration, then environment, then what the layer needs: eager for sinks and windows, else torch. Throws
// ConfigError for a choice that cannot do what the layer needs: flash kinds with a mask, flash_attention_2 with sinks,
// torch with sinks or a window.
[[nodiscard]] SdpaChoice resolve_sdpa(const SdpaRequest& request);

}  // namespace d9d::kernels
