// The implementation of scaled dot-product attention: one of the records below, selected in JSON by "kind".
//
// Example
//   {"kind": "torch", "backends": ["FLASH_ATTENTION", "MATH"]}
#pragma once

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "d9d/base/enum_names.h"
#include "d9d/base/record.h"

namespace d9d {

// The kernels that PyTorch's scaled_dot_product_attention chooses from.
enum class TorchSdpaKernel : std::uint8_t { kMath, kFlash, kEfficient, kCudnn };
constexpr auto enum_names(TorchSdpaKernel) {
  return std::to_array<EnumName<TorchSdpaKernel>>({{TorchSdpaKernel::kMath, "MATH"},
                                                   {TorchSdpaKernel::kFlash, "FLASH_ATTENTION"},
                                                   {TorchSdpaKernel::kEfficient, "EFFICIENT_ATTENTION"},
                                                   {TorchSdpaKernel::kCudnn, "CUDNN_ATTENTION"}});
}

struct TorchSdpaConfig {
  std::optional<std::vector<TorchSdpaKernel>> backends = {};  // the first that fits runs; null: PyTorch chooses

  static constexpr Tag kTag = {"kind", "torch"};
  static constexpr auto fields() { return record<TorchSdpaConfig>(defaulted("backends", &TorchSdpaConfig::backends)); }
};

// Separate operations for the formula, which store the matrix of scores in memory.
struct EagerSdpaConfig {
  static constexpr Tag kTag = {"kind", "eager"};
  static constexpr auto fields() { return record<EagerSdpaConfig>(); }
};

// The flash kinds name kernels of other packages; the fastest kernel of this build runs in their place.
struct FlashAttention2SdpaConfig {
  static constexpr Tag kTag = {"kind", "flash_attention_2"};
  static constexpr auto fields() { return record<FlashAttention2SdpaConfig>(); }
};

struct FlashAttention4SdpaConfig {
  static constexpr Tag kTag = {"kind", "flash_attention_4"};
  static constexpr auto fields() { return record<FlashAttention4SdpaConfig>(); }
};

using SdpaConfig = std::variant<TorchSdpaConfig, EagerSdpaConfig, FlashAttention2SdpaConfig, FlashAttention4SdpaConfig>;

}  // namespace d9d
