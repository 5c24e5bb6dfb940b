// Splits the positions of a sequence over ranks. The model's attention gathers the keys and values of the other ranks;
// the caller gives the model this rank's positions of each input.
//
// Example
//   const DeviceMesh ranks = context.mesh(MeshDomain::kBatch).slice({"cp"});
//   parallelize_context_parallel(*decoder, ranks);                              // once, on the meta device
//   ids = context_parallel_shard(batch.input_ids, /*dim=*/1, ranks);            // each batch; labels, position_ids too
//
// Everything but attention works position by position. Parameters are whole on all these ranks: to data parallelism
// they are ranks with other data. Heads that pool positions would need those of the other ranks: refused.
#pragma once

#include <ATen/core/Tensor.h>

#include "d9d/core/mesh/device_mesh.h"
#include "d9d/modules/module.h"

namespace d9d {

// Local. Every attention core below `module` gathers keys and values over `ranks`, one axis; every Dropout draws for
// its part of the positions, dim 1 of what it gets. Throws ConfigError for a classification or embedding head. Before
// parallelize_sequence_parallel(), which cuts further.
void parallelize_context_parallel(Module& module, const DeviceMesh& ranks);

// Local. This rank's positions of x, which all ranks have: part r of W equal parts of `dim`, a view; x itself on one
// rank. Throws ConfigError unless the ranks divide the dim. Negative dims count from the end.
[[nodiscard]] at::Tensor context_parallel_shard(const at::Tensor& x, std::int64_t dim, const DeviceMesh& ranks);

}  // namespace d9d
