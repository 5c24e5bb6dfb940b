// Shards the parameters of any model over the data-parallel ranks, in one call.
//
// Example
//   void parallelize_model_stage(const DistContext& context, const PipelineStageInfo&, Module&) override {
//     shard_over_data(context, model_.shared(), {model_->embedding.shared(), model_->block.shared()});
//   }
#pragma once

#include <memory>
#include <vector>

#include "d9d/core/dist_context/dist_context.h"
#include "d9d/modules/module.h"
#include "d9d/parallelism/fsdp/fsdp_config.h"

namespace d9d {

// Local, on the meta device. Declares that along mesh.data_parallel_shard each rank keeps a part of every parameter,
// gradient and optimiser state, and that along mesh.data_parallel_replicate all ranks keep the same part. units:
// modules below `model` in the order in which forward calls them through their ModulePtr; a unit's parameters are
// gathered while it runs. A unit must not be below an earlier one; null units are skipped. Parameters outside of all
// units stay gathered from the model's forward to the end of its backward. If data_parallel_shard is 1 the model is
// replicated. Throws ConfigError for invalid units, and if a degree of the mesh splits the model or its sequences.
void shard_over_data(const DistContext& context, const std::shared_ptr<Module>& model,
                     const std::vector<std::shared_ptr<Module>>& units, const FsdpConfig& config = {});

}  // namespace d9d
