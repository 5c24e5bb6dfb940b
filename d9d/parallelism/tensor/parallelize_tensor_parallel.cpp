#include "d9d/parallelism/tensor/parallelize_tensor_parallel.h"

#include <algorithm>

#include "d9d/base/check.h"
#include "d9d/parallelism/positions.h"
#include "d9d/parallelism/tensor/sequence_sharded_context.h"
#include "d9d/parallelism/tensor/vocabulary_parallel_context.h"

namespace d9d {
namespace {

// Sets the placements of weights over one axis.
class Placer {
 public:
  Placer(const DeviceMesh& mesh, const std::string& axis) : mesh_(mesh), axis_(axis) {}

  void column(const ModulePtr<Linear>& linear) const {
    if (!linear) return;
    shard(*linear->weight, 0);
    if (linear->bias) shard(*linear->bias, 0);
  }
  void row(const ModulePtr<Linear>& linear) const {
    shard(*linear->weight, 1);
    if (linear->bias) summed(*linear->bias);
  }
  void shard(Parameter& parameter, std::int64_t dim) const { parameter.place(mesh_, axis_, Shard{dim}, Shard{dim}); }
  void summed(Parameter& parameter) const { parameter.place(mesh_, axis_, Replicate{}, Partial{ReduceOp::kSum}); }
  void vocabulary(const std::vector<ParameterPtr>& weights) const {
    const std::int64_t num_ranks = mesh_.axis_size(axis_);
    std::int64_t total = 0;
    const bool all_have_rows = std::ranges::any_of(weights, [&](const ParameterPtr& weight) {
      total += weight->global_shape()[0];
      return chunk_range(weight->global_shape()[0], num_ranks - 1, num_ranks).numel() > 0;
    });
    D9D_CHECK(all_have_rows, ConfigError, "[parallelism::tensor] expected a vocabulary that gives each of ", num_ranks,
              " tensor-parallel ranks some rows of some split, got splits of ", total,
              " rows that leave the last rank none. Lower mesh.tensor_parallel or join splits.");
    for (const ParameterPtr& weight : weights) shard(*weight, 0);
  }
  [[nodiscard]] DeviceMesh ranks() const { return mesh_.slice({axis_}); }

 private:
  const DeviceMesh& mesh_;
  const std::string& axis_;
};

}  // namespace

void parallelize_tensor_parallel(GroupedQueryAttention& attention, const DeviceMesh& mesh, const std::string& axis) {
  const std::int64_t num_ranks = mesh.axis_size(axis);
  D9D_CHECK(attention.config.num_key_value_heads % num_ranks == 0, ConfigError,
            "[parallelism::tensor] expected num_key_value_heads in a multiple of tensor-parallel ranks = ", num_ranks,
            ", got ", attention.config.num_key_value_heads, ". Lower mesh.tensor_parallel.");
  const Placer placer(mesh, axis);
  for (const auto* projection : {&attention.q_proj, &attention.k_proj, &attention.v_proj, &attention.gate_proj}) {
    placer.column(*projection);
  }
  placer.row(attention.o_proj);
  if (attention.q_norm) placer.summed(*attention.q_norm->weight);
  if (attention.k_norm) placer.summed(*attention.k_norm->weight);
  if (attention.kernel->sinks) placer.shard(*attention.kernel->sinks, 0);
  attention.set_tensor_parallel_context(std::make_shared<SequenceShardedTensorParallelContext>(placer.ranks()));
}

void parallelize_tensor_parallel(SwiGLU& feed_forward, const DeviceMesh& mesh, const std::string& axis) {
  const Placer placer(mesh, axis);
  placer.column(feed_forward.gate_proj);
  placer.column(feed_forward.up_proj);
  placer.row(feed_forward.down_proj);
  feed_forward.set_tensor_parallel_context(std::make_shared<SequenceShardedTensorParallelContext>(placer.ranks()));
}

void parallelize_tensor_parallel(SplitTokenEmbeddings& embeddings, const DeviceMesh& mesh, const std::string& axis) {
  const Placer placer(mesh, axis);
  placer.vocabulary(embeddings.weights);
  embeddings.set_tensor_parallel_context(std::make_shared<SequenceShardedTensorParallelContext>(placer.ranks()));
}

void parallelize_tensor_parallel(LanguageModellingHead& head, const DeviceMesh& mesh, const std::string& axis) {
  const Placer placer(mesh, axis);
  placer.vocabulary(head.weights);
  head.set_vocabulary_context(std::make_shared<VocabularyParallelContext>(placer.ranks()));
}

void parallelize_sequence_parallel(RMSNorm& norm, const DeviceMesh& mesh, const std::string& axis) {
  Placer(mesh, axis).summed(*norm.weight);
}

void parallelize_sequence_parallel(Dropout& dropout, const DeviceMesh& mesh, const std::string& axis) {
  dropout.add_cut({.ranks = mesh.slice({axis}), .dim = kPositions});
}

}  // namespace d9d
