// The gated feed-forward of LLaMA-like decoders: down(silu(gate(x)) * up(x)).
#pragma once

#include "d9d/modules/blocks/linear/linear.h"

namespace d9d {

struct SwiGLUConfig {
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;
  bool has_bias = false;
};

// State: {gate,up}_proj.weight [I, H], down_proj.weight [H, I], biases if asked for.
class SwiGLU : public Module {
 public:
  explicit SwiGLU(const SwiGLUConfig& config);
  // x [..., H] -> [..., H].
  [[nodiscard]] at::Tensor forward(const at::Tensor& x) const;

  const ModulePtr<Linear> gate_proj;
  const ModulePtr<Linear> up_proj;
  const ModulePtr<Linear> down_proj;
};

}  // namespace d9d
