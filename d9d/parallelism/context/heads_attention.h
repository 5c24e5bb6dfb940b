// Context parallelism by an exchange of positions for heads (DeepSpeed-Ulysses, arXiv:2309.14509): each rank attends
// with some of the heads to all positions.
#pragma once

#include "d9d/blocks/attention/attention_context.h"
#include "d9d/core/dtensor/position_cut.h"

namespace d9d {

// Whether W ranks can have equally many query heads, and each with them the heads of keys that they read: W divides Hq,
// and W divides Hkv or Hkv divides W. In the latter case W / Hkv ranks get copies of a head of keys and values.
[[nodiscard]] bool ranks_divide_heads(std::int64_t num_ranks, std::int64_t num_heads, std::int64_t num_kv_heads);

// Each rank has its positions of the cut, as context_parallel_shard() splits them, and computes Hq / W of the heads, as
// one rank would: causality, windows, sinks, softcaps and packed sequences need no more. Packed sequences are those of
// all B * S positions. attend() is collective: it runs two all_to_all in forward, of queries, keys and values and of
// the output, and two in backward. The gradient of a sink is on the rank that has its head; that of the others is zero.
// Throws ConfigError for masks and heads that the ranks do not divide.
class HeadsAttentionContext final : public AttentionContext {
 public:
  explicit HeadsAttentionContext(PositionCut positions) : positions_(std::move(positions)) {}  // over one axis
  [[nodiscard]] at::Tensor attend(const kernels::SdpaInputs& inputs, const kernels::SdpaOptions& options,
                                  const kernels::SdpaPreferences& preferences) const override;

 private:
  PositionCut positions_;
};

}  // namespace d9d
