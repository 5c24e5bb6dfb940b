// The experts of a mixture: a gated feed-forward for each group of rows.
#pragma once

#include "d9d/blocks/moe/grouped_linear.h"

namespace d9d {

struct GroupedSwiGLUConfig {
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;  // of one expert
  std::int64_t num_experts = 0;
  std::optional<GroupedMMConfig> grouped_mm_backend;
};

// State: {gate,up}_proj.weight [E, H, I], down_proj.weight [E, I, H].
class GroupedSwiGLU : public Module {
 public:
  explicit GroupedSwiGLU(const GroupedSwiGLUConfig& config);
  // rows [N, H] sorted by expert, probs [N] -> probs * down(silu(gate(rows)) * up(rows)), [N, H].
  // Experts without rows get zero, not missing, gradients.
  [[nodiscard]] at::Tensor forward(const at::Tensor& rows, const at::Tensor& probs,
                                   const kernels::ExpertTokenGroups& groups) const;

  const ModulePtr<GroupedLinear> gate_proj;
  const ModulePtr<GroupedLinear> up_proj;
  const ModulePtr<GroupedLinear> down_proj;
};

}  // namespace d9d
