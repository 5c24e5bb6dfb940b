// Rejects jobs that cannot be captured in CUDA graphs.
#pragma once

#include "d9d/core/dist_context/dist_context.h"
#include "d9d/loop/config/trainer_config.h"
#include "d9d/modules/module.h"

namespace d9d {

// Throws ConfigError, naming the key, if trainer.cuda_graph is set on a device other than CUDA, with
// trainer.detect_non_finite, or with a mesh degree above 1 other than data_parallel_replicate, pipeline_parallel and
// tensor_parallel.
void check_cuda_graph(const DistContext& context, const TrainerConfig& config);
// Throws ConfigError if trainer.cuda_graph is set and the module has a GradientReduction of its own (FSDP), or
// checkpoints that offload.
void check_cuda_graph(const TrainerConfig& config, Module& module);

// Throws ConfigError if trainer.cuda_graph is set for a task whose microbatches have no graph key. has_key:
// Microbatch<Types>::kHasKey.
void check_cuda_graph(const TrainerConfig& config, bool has_key);

}  // namespace d9d
