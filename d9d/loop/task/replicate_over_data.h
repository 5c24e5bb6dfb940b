// The default layout, for a model whose provider declares none.
#pragma once

#include "d9d/core/dist_context/dist_context.h"
#include "d9d/modules/module.h"

namespace d9d {

// Throws ConfigError if a degree of the mesh splits the model or its sequences.
void check_only_data_parallel(const DistContext& context);

// Local, on the meta device. Every data-parallel rank holds the whole module, and gradients are summed over these
// ranks. After each step, buffers of adopted modules get the values of the first rank (broadcast_buffers). Throws
// ConfigError for mesh.data_parallel_shard > 1 (shard_over_data.h), and as check_only_data_parallel().
void replicate_over_data(const DistContext& context, Module& module);

}  // namespace d9d
