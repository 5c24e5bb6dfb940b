// The gated feed-forward of LLaMA-like decoders: down(silu(gate(x)) * up(x)).
#pragma once

#include "d9d/blocks/linear/tensor_parallel_context.h"

namespace d9d {

struct SwiGLUConfig {
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;
  bool has_bias = false;
};

// In a checkpointed body, many positions are computed in parts of at most kPositionsOfPart, each with a checkpoint of
// its own: backward then never holds the inner features of all of them. Not under tensor parallelism.
//
// State: {gate,up}_proj.weight [I, H], down_proj.weight [H, I], and biases if has_bias.
class SwiGLU : public Module {
 public:
  explicit SwiGLU(const SwiGLUConfig& config);
  static constexpr std::int64_t kPositionsOfPart = 32768;

  // x [..., H] -> [..., H]; under tensor parallelism x is a shard of the sequence, [B, S / W, H].
  [[nodiscard]] at::Tensor forward(const at::Tensor& x) const;

  [[nodiscard]] std::optional<TensorPlan> tensor_plan(std::int64_t num_ranks) const override;
  void set_tensor_parallel_context(TensorParallelContextPtr context) override { tensor_parallel_ = std::move(context); }

  const ModulePtr<Linear> gate_proj;
  const ModulePtr<Linear> up_proj;
  const ModulePtr<Linear> down_proj;

 private:
  void after_materialize(at::Device device) override;
  [[nodiscard]] at::Tensor forward_whole(const at::Tensor& x) const;

  TensorParallelContextPtr tensor_parallel_ = std::make_shared<LocalTensorParallelContext>();
};

}  // namespace d9d
