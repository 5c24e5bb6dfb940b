#include "d9d/models/decoder/sharded_sequence.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "d9d/parallelism/context/parallelize_context_parallel.h"

namespace d9d {

ShardedSequence::ShardedSequence(const at::Tensor& ids, const DeviceMesh& ranks)
    : length_(ids.size(1)),
      shard_((length_ + ranks.num_ranks() - 1) / ranks.num_ranks()),
      positions_(ranks.has_axis("cp") ? ranks.slice({"cp"}) : DeviceMesh()) {
  const std::int64_t num_padding = shard_ * ranks.num_ranks() - length_;
  const auto of_this_rank = [&](const at::Tensor& row) {
    return context_parallel_shard(at::constant_pad_nd(row, {0, num_padding}), /*dim=*/1, positions_);
  };
  input_ = {of_this_rank(ids)};
  shared_ = {.position_ids = of_this_rank(at::arange(length_, ids.options()).unsqueeze(0)),
             .hidden_states_agg_mask = std::nullopt};
  if (num_padding == 0) return;
  const std::int64_t size = input_.input_ids.size(1), first = positions_.index() * size;
  shared_.real_positions = at::arange(std::clamp<std::int64_t>(length_ - first, 0, size), ids.options());
}

at::Tensor ShardedSequence::last_logits(const DecoderForCausalLM& model, const at::Tensor& hidden_states) const {
  // Each rank computes the row that would be the last one if the last position were in its shard; tensor parallelism
  // gathers these rows.
  const at::Tensor candidates = model.head(hidden_states.narrow(1, (length_ - 1) % shard_, 1));
  const std::int64_t owner = (length_ - 1) / shard_;
  const at::Tensor logits = candidates.select(1, owner % candidates.size(1)).squeeze(0).contiguous();
  if (positions_.num_ranks() > 1) positions_.communicator()->broadcast(logits, owner / candidates.size(1)).wait();
  return logits;
}

}  // namespace d9d
