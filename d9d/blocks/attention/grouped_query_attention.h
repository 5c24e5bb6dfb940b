// Self-attention with grouped key and value heads (Ainslie et al., arXiv:2305.13245), which includes multi-head and
// multi-query attention as its extremes. Optional: normalised queries and keys, rotation of a slice of each head, a
// sigmoid output gate, biases of projections, sinks, a sliding window, a softcap.
//
// Legend   B batch, S sequence, H hidden size, Hq query heads, Hkv key and value heads, D head dim.
#pragma once

#include <optional>

#include "d9d/blocks/attention/sdpa.h"
#include "d9d/blocks/linear/tensor_parallel_context.h"
#include "d9d/blocks/normalization/rms_norm.h"
#include "d9d/blocks/positional/rotary_embedding.h"

namespace d9d {

struct GroupedQueryAttentionConfig {
  std::int64_t hidden_size = 0;
  std::int64_t num_attention_heads = 0;  // Hq, a multiple of Hkv
  std::int64_t num_key_value_heads = 0;  // Hkv
  std::int64_t head_dim = 0;             // D
  std::optional<double> qk_norm_eps;     // set: queries and keys are RMS-normalised over D before rotation
  bool qk_norm_zero_centered = false;
  bool is_causal = true;
  RotaryStyle rope_style = RotaryStyle::kHalf;
  // Rotate the first rope_dim features of each head; none: all D; 0: no rotation, and no tables.
  std::optional<std::int64_t> rope_dim;
  bool has_qkv_bias = false;     // biases of q_proj, k_proj, v_proj, and gate_proj if there is a gate
  bool has_output_bias = false;  // a bias of o_proj
  bool has_output_gate = false;  // multiply by sigmoid(gate_proj(x)) before the output projection
  bool has_sinks = false;
  std::optional<std::int64_t> window_left;  // sliding window, see SdpaParameters
  std::optional<std::int64_t> window_right;
  std::optional<double> softcap;  // bound of the logits
  bool needs_attention_mask = false;
  std::optional<SdpaConfig> sdpa_backend;
};

// State: {q,k,v,o}_proj.weight; gate_proj.weight if there is a gate; .bias of projections that have one;
// {q,k}_norm.weight if there are norms; kernel.sinks if there are sinks.
class GroupedQueryAttention : public Module {
 public:
  explicit GroupedQueryAttention(const GroupedQueryAttentionConfig& config);

  // hidden_states [B, S, H], tables [B, S, rope_dim or D] (ignored if rope_dim is 0), mask as in
  // kernels/attention/sdpa.h -> [B, S, H]. Under tensor parallelism hidden states are shards of the sequence, but
  // tables cover the whole sequence. packed: sequences in the order of the B * S positions, under context
  // parallelism of those of all ranks; the tables count the positions of each from 0.
  [[nodiscard]] at::Tensor forward(const at::Tensor& hidden_states, const RotaryTables& tables,
                                   const std::optional<at::Tensor>& attention_mask = std::nullopt,
                                   const std::optional<PackedSequences>& packed = std::nullopt) const;

  // A query sees half of the sequence on average if attention is causal. Windows are not considered.
  [[nodiscard]] double training_flops(std::int64_t num_positions) const override;
  [[nodiscard]] std::optional<TensorPlan> tensor_plan(std::int64_t num_ranks) const override;
  // Each rank has as many query heads, the last ones fewer or none, and their heads of keys and values: as shards if
  // the ranks divide Hkv, otherwise out of whole weights of k_proj and v_proj.
  void set_tensor_parallel_context(TensorParallelContextPtr context) override;

  const GroupedQueryAttentionConfig config;
  const ModulePtr<Linear> q_proj;
  const ModulePtr<Linear> k_proj;
  const ModulePtr<Linear> v_proj;
  const ModulePtr<Linear> o_proj;
  const ModulePtr<Linear> gate_proj;  // null without a gate
  const ModulePtr<RMSNorm> q_norm;    // null without norms
  const ModulePtr<RMSNorm> k_norm;
  const ModulePtr<Sdpa> kernel;

 private:
  [[nodiscard]] ModulePtr<Linear> register_projection(const std::string& name, std::int64_t num_heads);
  [[nodiscard]] std::vector<ModulePtr<Linear>> projections() const;  // of hidden states: q, k, v and the gate
  // Repeats heads of keys or values [B, S, n, D] that this rank's query heads share unevenly: one for each of these.
  [[nodiscard]] at::Tensor shared_evenly(const at::Tensor& heads) const;
  void after_materialize(at::Device device) override;

  TensorParallelContextPtr tensor_parallel_ = std::make_shared<LocalTensorParallelContext>();
  // The number of this rank's query heads that share each of its heads of keys and values; empty: as many each.
  std::vector<std::int64_t> queries_of_keys_;
};

}  // namespace d9d
