#include "d9d/parallelism/tensor/vocabulary_parallel_context.h"

#include <limits>

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/base/ignore_index.h"
#include "d9d/core/collectives/differentiable.h"
#include "d9d/core/dtensor/redistribute.h"
#include "d9d/kernels/linear_cross_entropy/linear_cross_entropy_preset.h"
#include "d9d/modules/tensor_plan.h"

namespace d9d {
namespace {

// Labels as rows of this rank's concatenated weights.
struct LocalLabels {
  at::Tensor is_here;     // [T] bool
  at::Tensor row;         // [T]; 0 if the label is on another rank
  at::Tensor is_outside;  // [T] bool: outside the whole vocabulary
};

LocalLabels local_labels(const at::Tensor& labels, const std::vector<ParameterPtr>& weights) {
  LocalLabels result{.is_here = at::zeros_like(labels, at::kBool), .row = at::zeros_like(labels), .is_outside = {}};
  std::int64_t first_id = 0;   // the split's first id in the vocabulary
  std::int64_t first_row = 0;  // the split's first row in the concatenated local weights
  for (const ParameterPtr& weight : weights) {
    const LocalBox box = local_box(weight->global_shape(), weight->mesh(), weight->placements());
    const std::int64_t first = first_id + box.start[0];
    const at::Tensor is_inside = labels.ge(first).logical_and(labels.lt(first + box.sizes[0]));
    result.row = at::where(is_inside, labels - first + first_row, result.row);
    result.is_here.logical_or_(is_inside);
    first_id += weight->global_shape()[0];
    first_row += box.sizes[0];
  }
  result.is_outside = labels.lt(0).logical_or(labels.ge(first_id)).logical_and(labels.ne(kIgnoreIndex));
  if (labels.is_cpu() && result.is_outside.any().item<bool>()) {
    throw ConfigError(cat("[parallelism::tensor] expected labels in the vocabulary of ", first_id, " or ", kIgnoreIndex,
                          ", got ", labels.masked_select(result.is_outside)[0].item<std::int64_t>(),
                          ". Check the tokenizer against the head's vocabulary."));
  }
  return result;
}

}  // namespace

// With lse_r = log(sum of exp over the logits of rank r) and z the logit of the label, which is on one rank:
//   loss = log(sum_r exp(lse_r)) - z
at::Tensor VocabularyParallelContext::cross_entropy(const at::Tensor& hidden_states, const HeadWeights& weights,
                                                    const at::Tensor& labels, const HeadLoss& options) const {
  const CommunicatorPtr communicator = ranks_.lane_communicator();
  const at::Tensor whole = all_gather_along(hidden_states, kPositions, communicator);
  D9D_CHECK(whole.sizes().slice(0, whole.dim() - 1) == labels.sizes(), ConfigError,
            "[parallelism::tensor] expected labels for the positions of all ", ranks_.num_ranks(),
            " tensor-parallel ranks, ", whole.sizes().slice(0, whole.dim() - 1), ", got ", labels.sizes(), ".");
  const at::Tensor flat_labels = labels.reshape({-1});
  const LocalLabels local = local_labels(flat_labels, weights.rows);
  const at::Tensor is_ignored = flat_labels.eq(kIgnoreIndex);

  const at::Tensor rows = whole.reshape({-1, whole.size(-1)});
  const at::Tensor targets = local.row.masked_fill(is_ignored, kIgnoreIndex);
  const auto [own_loss, own_lse] = kernels::linear_cross_entropy(
      rows, weights.local_rows(), targets,
      kernels::with_preset({.low_rank = weights.low_rank(whole), .ignore_index = kIgnoreIndex}, options.preset,
                           whole.scalar_type()));
  const at::Tensor greatest = own_lse.detach().clone();
  communicator->all_reduce(greatest, ReduceOp::kMax).wait();
  const at::Tensor own_logit = at::where(local.is_here, own_lse - own_loss, 0);
  const at::Tensor sums = all_reduce_forward(at::stack({(own_lse - greatest).exp(), own_logit}), communicator);
  const at::Tensor loss = sums[0].log() + greatest - sums[1];
  return loss.masked_fill(is_ignored, 0)
      .masked_fill(local.is_outside, std::numeric_limits<double>::quiet_NaN())
      .view(labels.sizes());
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
