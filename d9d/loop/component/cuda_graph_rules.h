// Which jobs can be captured in CUDA graphs.
#pragma once

#include "d9d/core/dist_context/dist_context.h"
#include "d9d/loop/config/trainer_config.h"
#include "d9d/modules/module.h"

namespace d9d {

// Throws ConfigError, naming the key, where trainer.cuda_graph is set for a job that it is not built for.
void check_cuda_graph(const DistContext& context, const TrainerConfig& config);
// The same of a module with layouts.
void check_cuda_graph(const TrainerConfig& config, Module& module);

}  // namespace d9d
