// One rank of a job whose other ranks do not exist, with tensors on the meta device: code that lays out and runs a
// model over ranks can run on it to determine shapes. Communication moves nothing and returns immediately.
//
// Example
//   const DistContext context({.mesh = mesh, .world = meta_rank(/*rank=*/3, mesh.world_size())});
//   model->materialize(context.device());         // the parts of rank 3, without memory
#pragma once

#include <memory>

#include "d9d/core/communicator/world.h"

namespace d9d {

[[nodiscard]] std::shared_ptr<World> meta_rank(std::int64_t rank, std::int64_t num_ranks);

}  // namespace d9d
