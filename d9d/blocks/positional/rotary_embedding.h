// The cos and sin tables of rotary position embedding (Su et al., arXiv:2104.09864), one module for each pipeline
// stage.
// Attention layers get the rows of their positions.
//
// Example
//   auto rope = make_module<RotaryEmbeddingProvider>(
//       RotaryEmbeddingConfig{.base = 10000, .head_dim = 64, .max_position_ids = 4096});
//   const RotaryTables tables = rope(position_ids);          // [B, S] -> cos, sin [B, S, 64]
#pragma once

#include <optional>

#include "d9d/blocks/positional/rope_scaling_config.h"
#include "d9d/kernels/rotary/rotary.h"
#include "d9d/modules/module.h"

namespace d9d {

using kernels::RotaryStyle;

struct RotaryTables {
  at::Tensor cos;  // [B, S, D]
  at::Tensor sin;  // [B, S, D]
  static constexpr auto fields() {
    return record<RotaryTables>(field("cos", &RotaryTables::cos), field("sin", &RotaryTables::sin));
  }
};

struct RotaryEmbeddingConfig {
  std::int64_t base = 10000;
  std::int64_t head_dim = 0;  // or the width of the rotated slice
  std::int64_t max_position_ids = 0;
  RotaryStyle style = RotaryStyle::kHalf;
  std::optional<RopeScalingConfig> scaling;
  bool keeps_float32 = false;  // tables stay float32 when the model is converted to a narrower dtype
};

// Buffers cos_emb, sin_emb [max_position_ids, head_dim], not in the state dict.
class RotaryEmbeddingProvider : public Module {
 public:
  explicit RotaryEmbeddingProvider(const RotaryEmbeddingConfig& config);
  // position_ids [B, S] int64. A position outside of [0, max_position_ids) is a ConfigError on the CPU and a
  // device-side assertion on a GPU.
  [[nodiscard]] RotaryTables forward(const at::Tensor& position_ids) const;

  const RotaryEmbeddingConfig config;

 private:
  const BufferPtr cos_;
  const BufferPtr sin_;
};

}  // namespace d9d
