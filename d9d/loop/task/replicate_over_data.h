// The default layout, for a model whose provider declares none.
#pragma once

#include "d9d/core/dist_context/dist_context.h"
#include "d9d/modules/module.h"

namespace d9d {

// Throws ConfigError if a degree of the mesh splits the model or its sequences.
void check_only_data_parallel(const DistContext& context);

// Local, on the meta device. Declares that every data-parallel rank holds the whole module, that gradients are summed
// over these ranks, and that buffers of adopted modules get the first rank's values after each step
// (broadcast_buffers). Throws ConfigError for mesh.data_parallel_shard > 1 (shard_over_data.h), and as
// check_only_data_parallel().
void replicate_over_data(const DistContext& context, Module& module);

}  // namespace d9d
