// Data parallelism by replication: every rank of some axes holds the whole module and computes on its own data, and
// gradients are summed over these axes.
//
// Example
//   parallelize_replicate(*model, context.mesh(MeshDomain::kDense), dense_data_axes());
#pragma once

#include <string>
#include <vector>

#include "d9d/modules/module.h"

namespace d9d {

// Local; call it on the meta device. Parameters become Replicate over the axes and their gradients Partial(sum), which
// makes internals/grad_sync sum them. Parameters that are placed on another mesh already do not change, nor do
// placements of parameters that are sharded over one of the axes.
void parallelize_replicate(Module& module, const DeviceMesh& mesh, const std::vector<std::string>& axes);

}  // namespace d9d
