#include "d9d/blocks/moe/grouped_swiglu.h"

#include <ATen/ATen.h>

#include "d9d/kernels/silu_mul/silu_mul.h"

namespace d9d {
namespace {

GroupedLinearConfig expert_linear(const GroupedSwiGLUConfig& config, std::int64_t in_features,
                                  std::int64_t out_features) {
  return {.num_groups = config.num_experts,
          .in_features = in_features,
          .out_features = out_features,
          .backend = config.grouped_mm_backend};
}

}  // namespace

GroupedSwiGLU::GroupedSwiGLU(const GroupedSwiGLUConfig& config)
    : gate_proj(register_module<GroupedLinear>("gate_proj",
                                               expert_linear(config, config.hidden_size, config.intermediate_size))),
      up_proj(register_module<GroupedLinear>("up_proj",
                                             expert_linear(config, config.hidden_size, config.intermediate_size))),
      down_proj(register_module<GroupedLinear>("down_proj",
                                               expert_linear(config, config.intermediate_size, config.hidden_size))) {}

at::Tensor GroupedSwiGLU::forward(const at::Tensor& rows, const at::Tensor& probs,
                                  const kernels::ExpertTokenGroups& groups) const {
  const auto [gate, up] = grouped_linears_of(rows, groups, gate_proj, up_proj);
  // The map after the activation is linear, so weighting the activation weights the output; a GPU does both in one
  // kernel. On other devices this would save nothing; there the output is weighted, which rounds as in other
  // implementations.
  if (rows.is_cuda() || rows.is_meta()) return down_proj(kernels::weighted_silu_mul(gate, up, probs), groups);
  return down_proj(kernels::silu_mul(gate, up), groups) * probs.to(rows.scalar_type()).unsqueeze(-1);
}

}  // namespace d9d
