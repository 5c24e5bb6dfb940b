#include "tests/layout/mended_later.h"

#include <algorithm>

namespace d9d::test {

std::optional<std::string> is_mended_later(const LayoutCase& drawn) {
  const auto& [job, layout] = drawn;
  const DeviceMeshParameters& mesh = layout.mesh;
  const bool has_context = mesh.context_parallel_shard * mesh.context_parallel_replicate > 1;
  const bool is_sharded = mesh.data_parallel_shard * mesh.context_parallel_shard > 1;
  const bool is_replicated = mesh.data_parallel_replicate * mesh.context_parallel_replicate > 1;
  const bool has_pooled_head = std::ranges::any_of(job.heads, [](Head head) { return head != Head::kCausalLM; });
  if (is_sharded && (is_replicated || mesh.tensor_parallel > 1) && (job.calls_layers_twice || job.has_pairs)) {
    return "a sharded unit reduced twice in a step is summed twice over its replicas";
  }
  if (has_context && has_experts(job) && job.balances_by_loss &&
      (job.labels != Labels::kAll || (has_pooled_head && job.pooling != Pooling::kAll))) {
    return "the auxiliary loss of ranks that count other labels of one sequence";
  }
  if (has_context && has_dropout(job)) return "one dropout mask for all ranks of a sequence";
  if (job.family == kOwnLayers && job.own.replays && layout.checkpoints == Checkpoints::kOuterNested) {
    return "a checkpoint inside of a checkpoint computes again what must be replayed";
  }
  const bool leaves_out_a_head = job.leaves_out_a_head && job.heads.size() > 1 && job.num_steps > 1;
  if (leaves_out_a_head && is_sharded) {
    return "sharded units are gathered in another order when a step's loss leaves out a head";
  }
  const bool leaves_out_a_branch = job.family == kOwnLayers && job.own.has_branch && job.num_steps > 1;
  if (leaves_out_a_head || leaves_out_a_branch) {
    return "a parameter without a gradient has one of zeros on some layouts";
  }
  return std::nullopt;
}

}  // namespace d9d::test
