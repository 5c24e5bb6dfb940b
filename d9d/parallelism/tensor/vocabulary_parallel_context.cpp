#include "d9d/parallelism/tensor/vocabulary_parallel_context.h"

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/base/ignore_index.h"
#include "d9d/base/rounding.h"
#include "d9d/core/collectives/differentiable.h"
#include "d9d/core/dtensor/redistribute.h"
#include "d9d/kernels/linear_cross_entropy/linear_cross_entropy_preset.h"
#include "d9d/modules/tensor_plan.h"

namespace d9d {
namespace {

constexpr std::int64_t kElsewhere = -1;

// Labels as rows of this rank's concatenated weights; kIgnoreIndex stays, and those of other ranks are kElsewhere.
// Throws ConfigError for a label outside the whole vocabulary on the CPU; elsewhere a check would have to synchronise.
at::Tensor local_labels(const at::Tensor& labels, const std::vector<ParameterPtr>& weights) {
  at::Tensor result = labels.masked_fill(labels.ne(kIgnoreIndex), kElsewhere);
  std::int64_t first_id = 0;   // the split's first id in the vocabulary
  std::int64_t first_row = 0;  // the split's first row in the concatenated local weights
  for (const ParameterPtr& weight : weights) {
    const LocalBox box = local_box(weight->global_shape(), weight->mesh(), weight->placements());
    const std::int64_t first = first_id + box.start[0];
    const at::Tensor is_inside = labels.ge(first).logical_and(labels.lt(first + box.sizes[0]));
    result = at::where(is_inside, labels - first + first_row, result);
    first_id += weight->global_shape()[0];
    first_row += box.sizes[0];
  }
  if (!labels.is_cpu()) return result;
  const at::Tensor is_outside = labels.lt(0).logical_or(labels.ge(first_id)).logical_and(labels.ne(kIgnoreIndex));
  if (is_outside.any().item<bool>()) {
    throw ConfigError(cat("[parallelism::tensor] expected labels in the vocabulary of ", first_id, " or ", kIgnoreIndex,
                          ", got ", labels.masked_select(is_outside)[0].item<std::int64_t>(),
                          ". Check the tokenizer against the head's vocabulary."));
  }
  return result;
}

kernels::VocabularyShard shard_of(const std::vector<ParameterPtr>& weights, const CommunicatorPtr& communicator) {
  std::int64_t most_rows = 0;
  for (const ParameterPtr& weight : weights) most_rows += divide_up(weight->global_shape()[0], communicator->size());
  const auto gather = [communicator](const at::Tensor& x) {
    at::Tensor all = at::empty({communicator->size(), x.size(0), x.size(1)}, x.options());
    communicator->all_gather(all.flatten(0, 1), x).wait();
    return all;
  };
  return {.gather = gather, .most_rows = most_rows};
}

}  // namespace

at::Tensor VocabularyParallelContext::cross_entropy(const at::Tensor& hidden_states, const HeadWeights& weights,
                                                    const at::Tensor& labels, const HeadLoss& loss) const {
  const CommunicatorPtr communicator = ranks_.lane_communicator();
  const at::Tensor whole = all_gather_along(hidden_states, kPositions, communicator);
  D9D_CHECK(whole.sizes().slice(0, whole.dim() - 1) == labels.sizes(), ConfigError,
            "[parallelism::tensor] expected labels for the positions of all ", ranks_.num_ranks(),
            " tensor-parallel ranks, ", whole.sizes().slice(0, whole.dim() - 1), ", got ", labels.sizes(), ".");
  const at::Tensor rows = whole.reshape({-1, whole.size(-1)});
  const kernels::LinearCrossEntropyOptions options =
      kernels::with_preset({.low_rank = weights.low_rank(whole),
                            .ignore_index = kIgnoreIndex,
                            .gradients_in_forward = loss.gradients == HeadGradients::kInForward,
                            .shard = shard_of(weights.rows, communicator)},
                           loss.preset, rows.scalar_type());
  return kernels::linear_cross_entropy(rows, weights.local_rows(), local_labels(labels.reshape({-1}), weights.rows),
                                       options)
      .loss.view(labels.sizes());
}

at::Tensor VocabularyParallelContext::logits(const at::Tensor& hidden_states, const HeadWeights& weights) const {
  const at::Tensor whole = all_gather_along(hidden_states, kPositions, ranks_.lane_communicator());
  std::vector<at::Tensor> parts;
  const std::vector<at::Tensor> own = weights.local_logits(whole);
  for (std::size_t split = 0; split < own.size(); ++split) {
    std::vector<std::int64_t> shape = whole.sizes().vec();
    shape.back() = weights.rows[split]->global_shape()[0];
    const DTensor columns{
        .local = own[split], .mesh = ranks_, .placements = {Shard{whole.dim() - 1}}, .global_shape = shape};
    parts.push_back(full_tensor(columns));
  }
  return at::cat(parts, -1);
}

}  // namespace d9d
