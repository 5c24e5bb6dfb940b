// The attention of context-parallel ranks by the method that suits each call.
#pragma once

#include "d9d/parallelism/context/all_gather_attention.h"
#include "d9d/parallelism/context/context_parallel_config.h"
#include "d9d/parallelism/context/heads_attention.h"

namespace d9d {

// Takes what AllGatherAttentionContext takes. attend() throws the errors of choose_context_attention(), too.
class ChosenAttentionContext final : public AttentionContext {
 public:
  ChosenAttentionContext(const PositionCut& positions, const ContextParallelConfig& config)  // over one axis
      : num_ranks_(positions.num_ranks()), config_(config), gathered_(positions), heads_(positions) {}
  [[nodiscard]] at::Tensor attend(const kernels::SdpaInputs& inputs, const kernels::SdpaOptions& options,
                                  const kernels::SdpaPreferences& preferences) const override;

 private:
  std::int64_t num_ranks_;
  ContextParallelConfig config_;
  AllGatherAttentionContext gathered_;
  HeadsAttentionContext heads_;
};

}  // namespace d9d
