// The gated feed-forward of LLaMA-like decoders: down(silu(gate(x)) * up(x)).
#pragma once

#include "d9d/blocks/linear/tensor_parallel_context.h"

namespace d9d {

struct SwiGLUConfig {
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;
  bool has_bias = false;
};

// State: {gate,up}_proj.weight [I, H], down_proj.weight [H, I], and biases if has_bias.
class SwiGLU : public Module {
 public:
  explicit SwiGLU(const SwiGLUConfig& config);
  // x [..., H] -> [..., H]; under tensor parallelism x is a shard of the sequence, [B, S / W, H].
  [[nodiscard]] at::Tensor forward(const at::Tensor& x) const;

  [[nodiscard]] std::optional<TensorPlan> tensor_plan(std::int64_t num_ranks) const override;
  void set_tensor_parallel_context(TensorParallelContextPtr context) override { tensor_parallel_ = std::move(context); }

  const ModulePtr<Linear> gate_proj;
  const ModulePtr<Linear> up_proj;
  const ModulePtr<Linear> down_proj;

 private:
  void after_materialize(at::Device device) override;

  TensorParallelContextPtr tensor_parallel_ = std::make_shared<LocalTensorParallelContext>();
};

}  // namespace d9d
