#include "d9d/modules/blocks/embedding/split_token_embeddings.h"

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/modules/blocks/embedding/split_weights.h"

namespace d9d {

namespace {

void check_ids(const at::Tensor& ids, std::int64_t size) {
  if (ids.device().is_cpu() && ids.numel() > 0) {
    const auto [low, high] = at::aminmax(ids);
    D9D_CHECK(low.item<std::int64_t>() >= 0 && high.item<std::int64_t>() < size, ConfigError,
              "[modules::embedding] expected token ids in [0, ", size, "), got ids from ", low.item<std::int64_t>(),
              " to ", high.item<std::int64_t>(), ". Check the tokenizer against split_vocab_size.");
  }
}

}  // namespace

SplitTokenEmbeddings::SplitTokenEmbeddings(VocabularySplits splits, std::int64_t hidden_size)
    : vocabulary(std::move(splits)),
      weights(register_module<SplitWeights>("token_embedding", vocabulary, hidden_size, init::normal(1.0))->weights) {}

at::Tensor SplitTokenEmbeddings::forward(const at::Tensor& ids) const {
  check_ids(ids, vocabulary.total());
  if (weights.size() == 1) return at::embedding(weights.front()->local(), ids);
  at::Tensor sum;
  std::int64_t start = 0;
  for (const ParameterPtr& weight : weights) {
    const std::int64_t size = weight->local().size(0);
    const at::Tensor is_inside = ids.ge(start).logical_and(ids.lt(start + size));
    const at::Tensor rows = at::embedding(weight->local(), at::where(is_inside, ids - start, 0));
    const at::Tensor part = at::where(is_inside.unsqueeze(-1), rows, 0);
    sum = sum.defined() ? sum + part : part;
    start += size;
  }
  return sum;
}

}  // namespace d9d
