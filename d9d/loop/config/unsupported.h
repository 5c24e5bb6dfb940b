// Rejects, by name, settings that are valid in a configuration but that this version does not support. None is ignored.
//
// Example
//   refuse_unsupported(config.trainer);
//   refuse_unsupported(config.optimizer);
//   // [config] optimizer.name = "sgd": this optimiser is not built in this version. Use 'adamw' or 'stochastic_adamw'.
#pragma once

#include "d9d/loop/config/trainer_config.h"
#include "d9d/optim/config.h"

namespace d9d {

// Each throws ConfigError for the first setting that is not supported. Messages name keys below `trainer` and
// `optimizer`. (Data sources are rejected where they are read: data/build/token_stream.h.)
void refuse_unsupported(const TrainerConfig& trainer);
void refuse_unsupported(const OptimizerConfig& optimizer);

}  // namespace d9d
