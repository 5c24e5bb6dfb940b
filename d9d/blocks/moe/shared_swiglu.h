// The expert that processes every token, optionally scaled by a sigmoid gate.
#pragma once

#include "d9d/blocks/ffn/swiglu.h"

namespace d9d {

struct SharedExpertParameters {
  std::int64_t intermediate_size = 1;
  bool enable_gate = false;

  static constexpr auto fields() {
    using Shared = SharedExpertParameters;
    return record<Shared>(required("intermediate_size", &Shared::intermediate_size, at_least(1)),
                          required("enable_gate", &Shared::enable_gate));
  }
};

// State: expert.{gate,up,down}_proj.weight, and gate.weight [1, H] if there is a gate.
class SharedSwiGLU : public Module {
 public:
  SharedSwiGLU(std::int64_t hidden_size, const SharedExpertParameters& parameters);
  // x [..., H] -> [..., H]; under tensor parallelism x is a shard of the sequence, [B, S / W, H].
  [[nodiscard]] at::Tensor forward(const at::Tensor& x) const;

  const ModulePtr<SwiGLU> expert;
  const ModulePtr<Linear> gate;  // null without a gate
};

}  // namespace d9d
