// Context parallelism: shards the positions of a sequence over ranks. The caller passes this rank's positions of each
// input to the model; its attention exchanges what it needs of the others with the other ranks.
//
// Example
//   const PositionCut positions = context_parallel_cut(context.mesh(MeshDomain::kBatch).slice({"cp"}));
//   parallelize_context_parallel(*decoder, positions);                          // once, on the meta device
//   ids = context_parallel_shard(batch.input_ids, /*dim=*/1, positions);        // each batch; labels, position_ids too
//
// Everything but attention works position by position. Parameters are not sharded over these ranks; data parallelism
// treats them as ranks with different data. A classification or embedding head gets the mask of all positions, and each
// rank its outputs for all of them: their loss has on each rank the weight that one rank would have.
#pragma once

#include <ATen/core/Tensor.h>

#include "d9d/core/dtensor/position_cut.h"
#include "d9d/modules/module.h"
#include "d9d/parallelism/context/context_parallel_config.h"

namespace d9d {

// Local. The cut of a sequence that all of context parallelism has, over the ranks of the axis "cp": of 2 W equal
// chunks rank r of W has chunks r and 2 W - 1 - r, so that with causality all ranks have as many pairs of a query and a
// key that it sees. One rank has everything. Sequences are padded to DeviceMeshParameters::position_divisor().
[[nodiscard]] PositionCut context_parallel_cut(const DeviceMesh& ranks);

// Local. Makes every attention core in `module` attend over the ranks of `positions`, of one axis, as `config` says,
// and every Dropout draw the mask of this rank's positions, dim 1 of its input. Call it before
// parallelize_tensor_parallel(), which shards positions further.
void parallelize_context_parallel(Module& module, const PositionCut& positions,
                                  const ContextParallelConfig& config = {});

// Local. This rank's positions of x, which is the same on all ranks, or x itself if there is one rank. Throws
// ConfigError unless the size of `dim` is a multiple of positions.divisor(). Negative dims count from the end.
[[nodiscard]] at::Tensor context_parallel_shard(const at::Tensor& x, std::int64_t dim, const PositionCut& positions);

}  // namespace d9d
