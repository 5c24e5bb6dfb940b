#include "d9d/models/decoder/sharded_sequence.h"

#include <ATen/ATen.h>

#include "d9d/base/rounding.h"
#include "d9d/parallelism/context/parallelize_context_parallel.h"

namespace d9d {

ShardedSequence::ShardedSequence(const at::Tensor& ids, const DeviceMesh& ranks)
    : context_ranks_(ranks.has_axis("cp") ? ranks.slice({"cp"}) : DeviceMesh()) {
  const PositionCut of_context = context_parallel_cut(context_ranks_);
  const PositionCut positions = of_context.then(PositionCut(ranks.has_axis("tp") ? ranks.slice({"tp"}) : DeviceMesh()));
  const std::int64_t length = ids.size(1), padded = round_up(length, positions.divisor());
  last_ = positions.place_of(length - 1, padded);
  const auto of_this_rank = [&](const at::Tensor& row) {
    return of_context.part_of(at::constant_pad_nd(row, {0, padded - length}), /*dim=*/1);
  };
  input_ = {of_this_rank(ids)};
  shared_ = {.position_ids = of_this_rank(at::arange(length, ids.options()).unsqueeze(0)),
             .hidden_states_agg_mask = std::nullopt};
  if (padded > length) {
    const at::Tensor is_real = of_this_rank(at::ones_like(ids, at::kBool)).squeeze(0);
    shared_.real_positions = is_real.nonzero().squeeze(1);
  }
}

at::Tensor ShardedSequence::last_logits(const DecoderForCausalLM& model, const at::Tensor& hidden_states) const {
  // Each rank computes the row that would be the last one if the last position were in its shard; tensor parallelism
  // gathers these rows.
  const at::Tensor candidates = model.head(hidden_states.narrow(1, last_.index, 1));
  const at::Tensor logits = candidates.select(1, last_.rank % candidates.size(1)).squeeze(0).contiguous();
  if (context_ranks_.num_ranks() > 1) {
    context_ranks_.communicator()->broadcast(logits, last_.rank / candidates.size(1)).wait();
  }
  return logits;
}

}  // namespace d9d
