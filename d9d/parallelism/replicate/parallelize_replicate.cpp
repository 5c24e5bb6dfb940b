#include "d9d/parallelism/replicate/parallelize_replicate.h"

namespace d9d {

void parallelize_replicate(Module& module, const DeviceMesh& mesh, const std::vector<std::string>& axes) {
  for (const auto& [name, parameter] : module.named_parameters()) {
    const bool is_placed = !parameter->mesh().axes().empty();
    if (is_placed && !(parameter->mesh() == mesh)) continue;
    for (const std::string& axis : axes) {
      if (is_placed && !std::holds_alternative<Replicate>(parameter->placements()[mesh.axis_index(axis)])) continue;
      parameter->place(mesh, axis, Replicate{}, Partial{ReduceOp::kSum});
    }
  }
}

}  // namespace d9d
