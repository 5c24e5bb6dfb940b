#include "d9d/parallelism/tensor/sequence_sharded_context.h"

#include "d9d/base/check.h"
#include "d9d/core/collectives/differentiable.h"
#include "d9d/modules/tensor_plan.h"
#include "d9d/parallelism/tensor/vocabulary_parallel_context.h"

namespace d9d {

at::Tensor SequenceShardedTensorParallelContext::enter(const at::Tensor& x) const {
  return all_gather_along(x, kPositions, ranks_.lane_communicator());
}

at::Tensor SequenceShardedTensorParallelContext::leave(const at::Tensor& summand) const {
  D9D_CHECK(
      summand.dim() == 3 && summand.size(kPositions) % ranks_.num_ranks() == 0, ConfigError,
      "[parallelism::tensor] expected hidden states [batch, positions, features] whose positions are a multiple of "
      "the tensor-parallel ranks = ",
      ranks_.num_ranks(), ", got ", summand.sizes(), ". Choose such a sequence length, or pad.");
  return reduce_scatter_along(summand, kPositions, ranks_.lane_communicator());
}

at::Tensor SequenceShardedTensorParallelContext::row_linear(const at::Tensor& y,
                                                            const ModulePtr<Linear>& linear) const {
  if (!linear->bias) return leave(linear(y));
  D9D_CHECK(linear->is_plain(), ConfigError, "[parallelism::tensor] hooks or activation checkpointing of '",
            linear->canonical_name(),
            "', a row-parallel linear with a bias, are not built in this version. Put them on its block.");
  return leave(linear->product(y)) + linear->bias->local();
}

VocabularyContextPtr SequenceShardedTensorParallelContext::vocabulary() const {
  return std::make_shared<VocabularyParallelContext>(ranks_);
}

}  // namespace d9d
