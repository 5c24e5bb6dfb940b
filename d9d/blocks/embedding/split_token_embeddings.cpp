#include "d9d/blocks/embedding/split_token_embeddings.h"

#include <cmath>

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/kernels/embedding/embedding.h"

namespace d9d {

namespace {

void check_ids(const at::Tensor& ids, std::int64_t size) {
  if (ids.device().is_cpu() && ids.numel() > 0) {
    const auto [low, high] = at::aminmax(ids);
    D9D_CHECK(low.item<std::int64_t>() >= 0 && high.item<std::int64_t>() < size, ConfigError,
              "[blocks::embedding] expected token ids in [0, ", size, "), got ids from ", low.item<std::int64_t>(),
              " to ", high.item<std::int64_t>(), ". Check the tokenizer against split_vocab_size.");
  }
}

// Rows of one table [n, H] whose first row has id `start`; `others` [..., 1] for ids of other tables.
at::Tensor rows_of(const at::Tensor& table, const at::Tensor& ids, std::int64_t start, const at::Tensor& others) {
  const std::int64_t size = table.size(0);
  const at::Tensor is_inside = ids.ge(start).logical_and(ids.lt(start + size));
  // Ids of other tables look up any rows, not all the same one: backward sums the rows of an id one after another.
  const at::Tensor rows = size == 0 ? table.sum(0)  // zeros that still have a gradient
                                    : kernels::embedding_rows(table, (ids - start).remainder(size));
  return at::where(is_inside.unsqueeze(-1), rows, others);
}

// Index in the whole table of the first row on this rank.
std::int64_t first_row(const Parameter& weight) {
  return local_box(weight.global_shape(), weight.mesh(), weight.placements()).start[0];
}

}  // namespace

SplitTokenEmbeddings::SplitTokenEmbeddings(VocabularySplits splits, std::int64_t hidden_size, EmbeddingUse of)
    : vocabulary(std::move(splits)),
      use(of),
      weights(register_module<SplitWeights>("token_embedding", vocabulary, hidden_size, init::normal(1.0),
                                            ParameterRole::kEmbedding)
                  ->weights) {}

std::optional<TensorPlan> SplitTokenEmbeddings::tensor_plan(std::int64_t num_ranks) const {
  TensorPlan plan{.input = TensorPlan::Edge::kWhole,
                  .output = TensorPlan::Edge::kShard,
                  .parameters = sharded_rows(weights, num_ranks)};
  if (adapter()) {
    for (const auto& placed : sharded_rows(adapter()->a->weights, num_ranks)) plan.parameters.push_back(placed);
    plan.parameters.push_back({adapter()->b->weight, Replicate{}});
  }
  return plan;
}

void SplitTokenEmbeddings::add_adapter(const LowRankConfig& low_rank) {
  const auto a = make_module<SplitWeights>(vocabulary, low_rank.rank, init::zeros(), ParameterRole::kEmbedding);
  const auto b = make_module<Linear>(LinearConfig{.in_features = low_rank.rank,
                                                  .out_features = weights.front()->global_shape().back(),
                                                  .role = ParameterRole::kEmbedding});
  b->weight->set_init(init::normal(1.0));
  put_new_adapter(a, b, {.rank = low_rank.rank, .scale = low_rank.scale}, weights.front()->local().scalar_type());
}

at::Tensor SplitTokenEmbeddings::forward(const at::Tensor& ids) const {
  check_ids(ids, vocabulary.total());
  const at::Tensor found = rows(weights, ids);
  return tensor_parallel_->leave(adapter() ? found + adapter()->from_hidden(rows(adapter()->a->weights, ids)) : found);
}

at::Tensor SplitTokenEmbeddings::rows(const std::vector<ParameterPtr>& tables, const at::Tensor& ids) const {
  const bool has_all_rows = tables.front()->local().size(0) == vocabulary.total();
  if (has_all_rows) return kernels::embedding_rows(tables.front()->local(), ids);
  // 0 for ids of other tables, NaN for ids of no table: on a GPU the host does not see the ids.
  const at::Tensor is_known = ids.ge(0).logical_and(ids.lt(vocabulary.total())).unsqueeze(-1);
  const at::Tensor others =
      at::zeros_like(is_known, tables.front()->local().options()).masked_fill_(is_known.logical_not(), std::nan(""));
  at::Tensor sum;
  std::int64_t start = 0;
  for (const ParameterPtr& weight : tables) {
    const at::Tensor part = rows_of(weight->local(), ids, start + first_row(*weight), others);
    sum = sum.defined() ? sum + part : part;
    start += weight->global_shape()[0];
  }
  return sum;
}

}  // namespace d9d
