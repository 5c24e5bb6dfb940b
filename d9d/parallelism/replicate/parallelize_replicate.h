// Every rank of some axes holds the whole module and computes on its own data; gradients are summed over them.
//
// Example
//   parallelize_replicate(*model, context.mesh(MeshDomain::kDense), dense_data_axes());
#pragma once

#include <string>
#include <vector>

#include "d9d/modules/module.h"

namespace d9d {

// Local, on the meta device. Parameters become Replicate over the axes and their gradients Partial(sum): what sums them
// (internals/grad_sync) reads that. Parameters that lie on another mesh already, or are cut over one of the axes, stay
// as they are.
void parallelize_replicate(Module& module, const DeviceMesh& mesh, const std::vector<std::string>& axes);

}  // namespace d9d
