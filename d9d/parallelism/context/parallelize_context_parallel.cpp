#include "d9d/parallelism/context/parallelize_context_parallel.h"

#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/blocks/attention/sdpa.h"
#include "d9d/blocks/head/pooled_head.h"
#include "d9d/blocks/regularization/dropout.h"
#include "d9d/modules/tensor_plan.h"
#include "d9d/parallelism/context/chosen_attention.h"

namespace d9d {

PositionCut context_parallel_cut(const DeviceMesh& ranks) {
  const std::int64_t num_ranks = ranks.num_ranks();
  if (num_ranks == 1) return {};
  std::vector<std::vector<std::int64_t>> chunks_of_rank;
  for (std::int64_t rank = 0; rank < num_ranks; ++rank) chunks_of_rank.push_back({rank, 2 * num_ranks - 1 - rank});
  return {ranks, std::move(chunks_of_rank)};
}

void parallelize_context_parallel(Module& module, const PositionCut& positions, const ContextParallelConfig& config) {
  const auto context = std::make_shared<ChosenAttentionContext>(positions, config);
  bool attends = false;
  module.for_each_module([&](const std::string&, Module& each) {
    if (auto* const head = dynamic_cast<PooledHead*>(&each)) head->set_context_ranks(positions);
    if (auto* const dropout = dynamic_cast<Dropout*>(&each)) dropout->add_cut({.ranks = positions, .dim = kPositions});
    if (auto* const core = dynamic_cast<Sdpa*>(&each)) {
      core->set_attention_context(context);
      attends = true;
    }
  });
  if (attends) add_exchange_memory(module, context->memory());
}

at::Tensor context_parallel_shard(const at::Tensor& x, std::int64_t dim, const PositionCut& positions) {
  const std::int64_t divisor = positions.divisor();
  D9D_CHECK(x.size(dim) % divisor == 0, ConfigError, "[parallelism::context] expected a sequence in a multiple of ",
            divisor, " for the ", positions.num_ranks(), " context-parallel ranks, got ", x.size(dim),
            " positions in dim ", dim, " of ", x.sizes(), ", a remainder of ", x.size(dim) % divisor,
            ". Choose such a sequence length, or pad.");
  return positions.part_of(x, dim);
}

}  // namespace d9d
