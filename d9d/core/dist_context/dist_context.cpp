#include "d9d/core/dist_context/dist_context.h"

#include "d9d/base/check.h"

namespace d9d {

DistContext::DistContext(DistContextConfig config) : config_(std::move(config)) {
  const DeviceMeshParameters& mesh = config_.mesh;
  D9D_CHECK(!mesh.is_distributed(), ConfigError, "[core::dist_context] mesh of ", mesh.world_size(),
            " ranks (pipeline ", mesh.pipeline_parallel, ", replicate ", mesh.data_parallel_replicate, ", shard ",
            mesh.data_parallel_shard, ", context ", mesh.context_parallel_shard * mesh.context_parallel_replicate,
            ", tensor ", mesh.tensor_parallel, ", expert ", mesh.expert_parallel,
            "): more than one rank is not built in this version. Set every degree to 1.");
}

std::int64_t DistContext::data_parallel_size() const {
  return config_.mesh.data_parallel_replicate * config_.mesh.data_parallel_shard;
}

}  // namespace d9d
