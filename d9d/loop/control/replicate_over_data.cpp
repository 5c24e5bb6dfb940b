#include "d9d/loop/control/replicate_over_data.h"

#include <string_view>

#include "d9d/base/check.h"
#include "d9d/parallelism/replicate/parallelize_replicate.h"

namespace d9d {
namespace {

void refuse(std::string_view key, std::int64_t degree) {
  D9D_CHECK(degree == 1, ConfigError, "[loop::model_provider] mesh.", key, " = ", degree,
            ", but this model provider only replicates its model. Override parallelize_model_stage, or set it to 1.");
}

}  // namespace

void replicate_over_data(const DistContext& context, Module& module) {
  const DeviceMeshParameters& mesh = context.mesh_parameters();
  refuse("context_parallel_replicate", mesh.context_parallel_replicate);
  refuse("context_parallel_shard", mesh.context_parallel_shard);
  refuse("tensor_parallel", mesh.tensor_parallel);
  refuse("expert_parallel", mesh.expert_parallel);
  parallelize_replicate(module, context.mesh(MeshDomain::kDense), dense_data_axes());
}

}  // namespace d9d
