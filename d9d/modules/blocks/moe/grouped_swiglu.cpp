#include "d9d/modules/blocks/moe/grouped_swiglu.h"

#include "d9d/kernels/weighted_silu_mul/weighted_silu_mul.h"

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
  // The map after it is linear: weighting the activation weights the output.
  return down_proj(kernels::weighted_silu_mul(gate_proj(rows, groups), up_proj(rows, groups), probs), groups);
}

}  // namespace d9d
