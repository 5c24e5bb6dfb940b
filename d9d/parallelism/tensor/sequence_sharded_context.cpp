#include "d9d/parallelism/tensor/sequence_sharded_context.h"

#include "d9d/base/check.h"
#include "d9d/core/collectives/differentiable.h"
#include "d9d/kernels/silu_mul_linear/silu_mul_linear.h"
#include "d9d/modules/tensor_plan.h"
#include "d9d/parallelism/tensor/vocabulary_parallel_context.h"

namespace d9d {

at::Tensor SequenceShardedTensorParallelContext::enter(const at::Tensor& x) const {
  return all_gather_along(x, kPositions, ranks_.lane_communicator());
}

void SequenceShardedTensorParallelContext::check_shards(const at::Tensor& whole) const {
  D9D_CHECK(whole.dim() == 3 && whole.size(kPositions) % ranks_.num_ranks() == 0, ConfigError,
            "[parallelism::tensor] expected hidden states [batch, positions, features] whose positions are a multiple "
            "of the tensor-parallel ranks = ",
            ranks_.num_ranks(), ", got ", whole.sizes(),
            ". Pad sequences by collate_padded_to_multiple() or collate_fixed_to_multiple().");
}

kernels::RowExchangePtr SequenceShardedTensorParallelContext::exchange(std::int64_t num_elements,
                                                                       const at::Tensor& like) const {
  if (num_elements == 0) return {};
  const auto found = exchanges_->find(
      like, [&](PeerRowExchange& exchange) { return exchange.fits(num_elements, like.scalar_type()); });
  D9D_CHECK(found.exchange || like.is_meta() || config_.exchange != ExchangeMethod::kCopyEngine, ConfigError,
            "[parallelism::tensor] expected ranks of group '", ranks_.lane_communicator()->group().name,
            "' that can read each other's memory for exchange = copy_engine, got a group where ", found.reason,
            ". Use \"auto\" or \"communicator\".");
  return found.exchange;
}

std::vector<at::Tensor> SequenceShardedTensorParallelContext::column_linears(
    const at::Tensor& x, const std::vector<ModulePtr<Linear>>& linears) const {
  const kernels::RowExchangePtr rows =
      x.dim() == 3 && are_products(linears) ? exchange(x.numel(), x) : kernels::RowExchangePtr();
  return rows ? linears_of(x, linears, {.input = rows}) : TensorParallelContext::column_linears(x, linears);
}

at::Tensor SequenceShardedTensorParallelContext::row_silu_mul_linear(const at::Tensor& gate, const at::Tensor& up,
                                                                     const ModulePtr<Linear>& linear) const {
  check_shards(gate);
  const std::int64_t num_rows = gate.size(0) * gate.size(kPositions) / ranks_.num_ranks();
  const kernels::RowExchangePtr rows = exchange(num_rows * linear->config.out_features, gate);
  if (!rows) return TensorParallelContext::row_silu_mul_linear(gate, up, linear);
  return kernels::silu_mul_linear(gate, up, linear->weight->local(), linear->low_rank_terms(), rows);
}

at::Tensor SequenceShardedTensorParallelContext::leave(const at::Tensor& summand) const {
  check_shards(summand);
  return reduce_scatter_along(summand, kPositions, ranks_.lane_communicator());
}

at::Tensor SequenceShardedTensorParallelContext::row_linear(const at::Tensor& y,
                                                            const ModulePtr<Linear>& linear) const {
  if (are_products({linear})) {
    check_shards(y);
    const std::int64_t num_rows = y.size(0) * y.size(kPositions) / ranks_.num_ranks();
    const kernels::RowExchangePtr rows = exchange(num_rows * linear->config.out_features, y);
    if (rows) return linears_of(y, {linear}, {.output = rows}).front();
  }
  if (!linear->bias) return leave(linear(y));
  return leave(linear(y, LinearBias::kLeftOut)) + linear->bias->local();
}

VocabularyContextPtr SequenceShardedTensorParallelContext::vocabulary() const {
  return std::make_shared<VocabularyParallelContext>(ranks_);
}

}  // namespace d9d
