#include "d9d/loop/task/replicate_over_data.h"

#include <string_view>

#include "d9d/base/check.h"
#include "d9d/modules/adopt.h"
#include "d9d/parallelism/replicate/parallelize_replicate.h"

namespace d9d {

void check_only_data_parallel(const DistContext& context) {
  const auto refuse = [](std::string_view key, std::int64_t degree) {
    D9D_CHECK(
        degree == 1, ConfigError, "[loop::model_provider] mesh.", key, " = ", degree,
        ", but this model provider divides the data and not its model. Override parallelize_model_stage, or set it "
        "to 1.");
  };
  const DeviceMeshParameters& mesh = context.mesh_parameters();
  refuse("context_parallel_replicate", mesh.context_parallel_replicate);
  refuse("context_parallel_shard", mesh.context_parallel_shard);
  refuse("tensor_parallel", mesh.tensor_parallel);
  refuse("expert_parallel", mesh.expert_parallel);
}

void replicate_over_data(const DistContext& context, Module& module) {
  check_only_data_parallel(context);
  const std::int64_t shards = context.mesh_parameters().data_parallel_shard;
  D9D_CHECK(shards == 1, ConfigError, "[loop::model_provider] mesh.data_parallel_shard = ", shards,
            ", but this model provider replicates its model. Call shard_over_data() in parallelize_model_stage, or set "
            "mesh.data_parallel_replicate instead.");
  parallelize_replicate(module, context.mesh(MeshDomain::kDense), dense_data_axes());
  broadcast_buffers(module, context.mesh(MeshDomain::kBatch).slice({"dp"}));
}

}  // namespace d9d
