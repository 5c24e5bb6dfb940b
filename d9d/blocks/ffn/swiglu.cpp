#include "d9d/blocks/ffn/swiglu.h"

#include <ATen/ATen.h>

#include "d9d/kernels/silu_mul/silu_mul.h"
#include "d9d/kernels/silu_mul_linear/silu_mul_linear.h"

namespace d9d {

SwiGLU::SwiGLU(const SwiGLUConfig& config)
    : gate_proj(register_module<Linear>("gate_proj",
                                        LinearConfig{config.hidden_size, config.intermediate_size, config.has_bias})),
      up_proj(register_module<Linear>("up_proj",
                                      LinearConfig{config.hidden_size, config.intermediate_size, config.has_bias})),
      down_proj(register_module<Linear>("down_proj",
                                        LinearConfig{config.intermediate_size, config.hidden_size, config.has_bias})) {}

void SwiGLU::after_materialize(at::Device device) {
  if (device.is_cuda()) join_weights({gate_proj, up_proj});
}

// The inner features may be divided unevenly.
std::optional<TensorPlan> SwiGLU::tensor_plan(std::int64_t /*num_ranks*/) const {
  TensorPlan plan{.input = TensorPlan::Edge::kShard, .output = TensorPlan::Edge::kShard};
  add_columns(plan, gate_proj);
  add_columns(plan, up_proj);
  add_rows(plan, down_proj);
  return plan;
}

at::Tensor SwiGLU::forward(const at::Tensor& x) const {
  const bool is_cut =
      is_checkpointed() && tensor_parallel_->ranks().num_ranks() == 1 && x.numel() > kPositionsOfPart * x.size(-1);
  if (!is_cut) return forward_whole(x);
  const auto body = [this](const at::Tensor& part) { return forward_whole(part); };
  return at::cat(checkpoint_each(body, x.flatten(0, -2).split(kPositionsOfPart))).view(x.sizes());
}

at::Tensor SwiGLU::forward_whole(const at::Tensor& x) const {
  const std::vector<at::Tensor> columns = tensor_parallel_->column_linears(x, {gate_proj, up_proj});
  if (down_proj->is_product()) {
    return tensor_parallel_->row_silu_mul_linear(columns[0], columns[1], down_proj);
  }
  return tensor_parallel_->row_linear(kernels::silu_mul(columns[0], columns[1]), down_proj);
}

}  // namespace d9d
